"""A language model and a tokenizer that fit a test: sums of small numbers."""

import json

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ["<pad>", "<eos>", "<unk>", "<user>", "<bot>", "<system>", *map(str, range(20)), *"+=?", "the", "answer", "is"]
CHAT = (
    "{% for message in messages %}"
    "{% if message.role == 'user' %}<user> {% elif message.role == 'system' %}<system> {% else %}<bot> {% endif %}"
    "{{ message.content }}{% if message.role == 'assistant' %} <eos>{% endif %} "
    "{% endfor %}{% if add_generation_prompt %}<bot> {% endif %}"
)


def tokenizer(chat=True):
    words = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokens = dict(eos_token="<eos>", pad_token="<pad>", unk_token="<unk>")
    made = PreTrainedTokenizerFast(tokenizer_object=words, chat_template=CHAT if chat else None, **tokens)
    made.add_special_tokens({"additional_special_tokens": ["<user>", "<bot>", "<system>"]})
    return made


def model(seed=0, **changes):
    torch.manual_seed(seed)
    sizes = dict(vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=2)
    sizes |= dict(num_attention_heads=4, num_key_value_heads=2, pad_token_id=0, eos_token_id=1, bos_token_id=None)
    return LlamaForCausalLM(LlamaConfig(**sizes | dict(max_position_embeddings=64) | changes))


def sums(path, count=40):
    with path.open("w") as file:
        for number in range(count):
            one, two = number % 9, number // 9
            row = {"problem": f"{one} + {two} = ?", "solution": f"the answer is {one + two}"}
            file.write(json.dumps(row) + "\n")
    return path
