"""A random Llama small enough for a test, with a tokenizer over whole words."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ("w0", "w1", "w2")


def random_llama(**shape: Any) -> LlamaForCausalLM:
    """The same weights every time, large enough that what comes out depends on the prompt.

    `shape` are fields of LlamaConfig; unless given, 2 layers, deviation 0.2, ids 1 and 2 begin and end.
    """
    torch.manual_seed(0)
    defaults = {"num_hidden_layers": 2, "initializer_range": 0.2, "bos_token_id": 1, "eos_token_id": 2}
    return LlamaForCausalLM(LlamaConfig(**(defaults | shape)))


def write_checkpoint(
    folder: Path,
    model: LlamaForCausalLM,
    words: Mapping[str, int],
    special: tuple[str, str, str] = SPECIAL,
) -> Path:
    """Write the model and a tokenizer of `words` (to ids); `special` are its unknown, first and last word."""
    model.save_pretrained(folder)
    unknown, first, last = special
    tokenizer = Tokenizer(models.WordLevel(dict(words), unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token=unknown, bos_token=first, eos_token=last, pad_token=last
    ).save_pretrained(folder)
    return folder
