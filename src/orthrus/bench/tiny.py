"""Small random-weight checkpoints of the paper's architectures (section 5.6), for machines without a GPU.

Their answers mean nothing; their work has the right shape: grouped attention, vocabulary, biases, rope.
The tokenizer is the sample model's.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from orthrus import models
from orthrus.models.cache import cache_root, fill

VOCABULARY = 49152
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 12,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "bfloat16",
}
TINY: dict[str, tuple[str, dict[str, Any]]] = {
    "tiny-mistral": ("MistralConfig", {"sliding_window": None, "rope_theta": 10000.0}),
    "tiny-qwen2": ("Qwen2Config", {"rope_theta": 1000000.0}),
    "tiny-llama3.1": (
        "LlamaConfig",
        {
            "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        },
    ),
}
"""Name to transformers' configuration class and what it has beside SHAPE."""


def build(name: str, folder: Path | None = None) -> Path:
    """The folder of a tiny checkpoint, made on first use (a few seconds) in the user's cache."""
    target = folder or cache_root() / "bench" / name
    fill(target, lambda work: _make(name, work))
    return target


def _make(name: str, folder: Path) -> None:
    import torch
    import transformers

    configuration, extra = TINY[name]
    config = getattr(transformers, configuration)(**SHAPE, **extra)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    model.save_pretrained(folder)
    sample = Path(models.resolve("smollm2"))
    for file in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(sample / file, folder / file)


def locate(model: str) -> str:
    """What to hand to vLLM for a spec's model: a tiny checkpoint's or sample's folder, or the name itself."""
    return str(build(model)) if model in TINY else models.resolve(model)
