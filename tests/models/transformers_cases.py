"""Our models as transformers' own tests want them. `test_transformers_suite.py` puts this file among those, as a module
of their package: it is not imported from here."""

import unittest

import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES

from ttcnet.adapter.families import FAMILIES
from ttcnet.models import TTCNetConfig, TTCNetForCausalLM, TTCNetModel

from .generation.test_utils import GenerationTesterMixin
from .test_configuration_common import ConfigTester
from .test_modeling_common import ModelTesterMixin, ids_tensor, torch_device
from .test_training_mixin import TrainingTesterMixin

# which of these are language models, the tests look up by name
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES |= {"ttc_llama": "TTCLlamaForCausalLM", "ttcnet": "TTCNetForCausalLM"}
MODEL_MAPPING_NAMES |= {"ttc_llama": "TTCLlamaModel", "ttcnet": "TTCNetModel"}

SIZES = dict(vocab_size=99, hidden_size=32, num_attention_heads=4, intermediate_size=32, max_position_embeddings=512)
SIZES |= dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, horizon=4)
LLAMA = FAMILIES[0]


class Inputs:
    """A model for the tests: its classes, a small configuration, and inputs."""

    batch_size, seq_length, num_hidden_layers, is_training = 13, 7, 2, True
    hidden_size, num_attention_heads, vocab_size = 32, 4, 99

    def __init__(self, config_class, base_model_class, causal_lm_class, **sizes):
        self.config_class, self.sizes = config_class, SIZES | sizes
        self.base_model_class, self.causal_lm_class = base_model_class, causal_lm_class

    def get_config(self):
        return self.config_class(**self.sizes)

    def prepare_config_and_inputs_for_common(self):
        ids = ids_tensor([self.batch_size, self.seq_length], self.vocab_size)
        return self.get_config(), {
            "input_ids": ids,
            "attention_mask": torch.tril(torch.ones_like(ids)).to(torch_device),
        }

    prepare_config_and_inputs = prepare_config_and_inputs_for_common


class Cases(ModelTesterMixin, GenerationTesterMixin, TrainingTesterMixin):
    def setUp(self):
        self.config_tester = ConfigTester(self, config_class=self.model_tester.config_class)
        self.all_model_classes = (self.model_tester.base_model_class, self.model_tester.causal_lm_class)

    def test_config(self):
        self.config_tester.run_common_tests()


class TTCLlamaTest(Cases, unittest.TestCase):
    model_tester = Inputs(
        *(LLAMA.ours[kind] for kind in (LLAMA.config, LLAMA.backbone, LLAMA.generator)),
        num_hidden_layers=2,
        num_key_value_heads=2,
        ttc_adapter=dict(every=2, heads=4, state_size=8, rank=4, zero_init=False),
    )


class TTCNetTest(Cases, unittest.TestCase):
    model_tester = Inputs(
        *(TTCNetConfig, TTCNetModel, TTCNetForCausalLM),
        pattern=["attention", "attention", "ttc"],
        ttc_state_size=8,
        ttc_rank=4,
    )
