"""TTC-Net models in the conventions of Hugging Face. Importing this registers them with transformers' Auto classes."""

from ttcnet.extras import require

require("transformers", "models", "ttcnet.models")

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForTokenClassification  # noqa: E402

from .cache import MixerCache  # noqa: E402
from .cells import TTCNetForCellClassification  # noqa: E402
from .configuration import TTCNetConfig  # noqa: E402
from .horizon_and_loops import horizon, loops, set_horizon, set_loops  # noqa: E402
from .language import TTCNetForCausalLM  # noqa: E402
from .modeling import TTCNetModel  # noqa: E402

AutoConfig.register("ttcnet", TTCNetConfig)
AutoModel.register(TTCNetConfig, TTCNetModel)
AutoModelForCausalLM.register(TTCNetConfig, TTCNetForCausalLM)
AutoModelForTokenClassification.register(TTCNetConfig, TTCNetForCellClassification)

__all__ = [
    "MixerCache",
    "TTCNetConfig",
    "TTCNetForCausalLM",
    "TTCNetForCellClassification",
    "TTCNetModel",
    "horizon",
    "loops",
    "set_horizon",
    "set_loops",
]
