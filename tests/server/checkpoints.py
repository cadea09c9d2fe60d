"""Checkpoints for the server tests: a random tiny Llama, and sentence-transformers forms of others."""

from __future__ import annotations

import json
from pathlib import Path

import torch

WIDTH = 64
NAN_TOKEN = 7


def make_tiny(folder: Path, *, nan_row: bool = False) -> Path:
    """A random Llama over the words w0 ... w255. With `nan_row`, the word w7 gives NaN hidden states."""
    from tiny_llama import random_llama, write_checkpoint

    model = random_llama(
        hidden_size=WIDTH,
        intermediate_size=128,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=256,
        max_position_embeddings=4096,
    )
    if nan_row:
        with torch.no_grad():
            model.model.embed_tokens.weight[NAN_TOKEN] = torch.nan
    return write_checkpoint(folder, model, {f"w{i}": i for i in range(256)})


def link_model(model: Path, folder: Path) -> Path:
    """A folder whose files are links to those of `model`."""
    folder.mkdir()
    for file in model.iterdir():
        if file.is_file():
            (folder / file.name).symlink_to(file.resolve())
    return folder


def add_sentence_transformers_files(
    folder: Path,
    width: int,
    *,
    mode: str = "weightedmean",
    dense: int | None = None,
    normalize: bool = True,
    prompts: dict[str, str] | None = None,
) -> Path:
    """Write modules.json and its folders: Transformer, Pooling, Dense (Tanh, random weights), Normalize."""
    from safetensors.torch import save_file

    kinds = ["Transformer", "Pooling", *(["Dense"] if dense else []), *(["Normalize"] if normalize else [])]
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{kind}" if i else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    for module in modules[1:]:
        (folder / module["path"]).mkdir()
    pooling = {"word_embedding_dimension": width, f"pooling_mode_{mode}_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    if dense:
        config = {
            "in_features": width,
            "out_features": dense,
            "bias": True,
            "activation_function": "torch.nn.modules.activation.Tanh",
        }
        (folder / "2_Dense" / "config.json").write_text(json.dumps(config))
        generator = torch.Generator().manual_seed(1)
        weights = {
            "linear.weight": torch.randn(dense, width, generator=generator) / width**0.5,
            "linear.bias": torch.randn(dense, generator=generator) / 10,
        }
        save_file(weights, folder / "2_Dense" / "model.safetensors")
    if prompts:
        (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    return folder
