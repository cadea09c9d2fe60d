"""A Llama checkpoint in GGUF as a Hugging Face folder: tensors, configuration, tokenizer.

Written for the GGUF of SmolLM2: transformers reads its weights only dequantised and loses the splitting of
digits in its tokenizer, so both are converted here directly.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFReader

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
CONTROL_TOKEN = 3


class GgufFile:
    """The GGUF at `path`, opened for reading (memory-mapped)."""

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader

        self.reader: GGUFReader = GGUFReader(path)

    def value(self, key: str) -> Any:
        """A metadata value. KeyError where the file has none of that name."""
        return self.reader.fields[key].contents()

    def tensors(self) -> dict[str, np.ndarray[Any, Any]]:
        """float32 arrays by Hugging Face name, dequantised, with llama.cpp's permutation undone."""
        from gguf.quants import dequantize

        heads = {
            "attn_q": self.value("llama.attention.head_count"),
            "attn_k": self.value("llama.attention.head_count_kv"),
        }
        named = {}
        for tensor in self.reader.tensors:
            shape = tuple(int(size) for size in reversed(tensor.shape))
            array = dequantize(tensor.data, tensor.tensor_type).reshape(shape)
            if tensor.name in TOP_NAMES:
                named[TOP_NAMES[tensor.name]] = array
                continue
            _, layer, part, suffix = tensor.name.split(".")
            if part in heads:
                array = unpermute(array, heads[part])
            named[f"model.layers.{layer}.{LAYER_NAMES[part]}.{suffix}"] = array
        return named


def unpermute(array: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """Rows of a q or k projection [heads * d, n] from llama.cpp's interleaved rotary order to the halves'."""
    rows = array.shape[0] // heads // 2
    return array.reshape(heads, rows, 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def convert(source: Path, folder: Path) -> None:
    """Write model.safetensors (bfloat16), the two configurations and the tokenizer into `folder`."""
    gguf = GgufFile(source)
    write_weights(gguf, folder)
    write_config(gguf, folder)
    write_tokenizer(gguf, folder)


def write_weights(gguf: GgufFile, folder: Path) -> None:
    """Write the tensors in name order, so that equal inputs give equal bytes."""
    import numpy as np
    import torch
    from safetensors.torch import save_file

    tensors = {
        name: torch.from_numpy(np.array(array, dtype=np.float32)).to(torch.bfloat16)
        for name, array in sorted(gguf.tensors().items())
    }
    target = folder / "model.safetensors"
    save_file(tensors, target, metadata={"format": "pt"})
    target.chmod(0o644)  # safetensors creates files that only their owner reads; a cache may be shared


def write_config(gguf: GgufFile, folder: Path) -> None:
    """Write the model's and the generation's configuration from the metadata."""
    special = {
        "bos_token_id": gguf.value("tokenizer.ggml.bos_token_id"),
        "eos_token_id": gguf.value("tokenizer.ggml.eos_token_id"),
        "pad_token_id": gguf.value("tokenizer.ggml.padding_token_id"),
    }
    heads = gguf.value("llama.attention.head_count")
    width = gguf.value("llama.embedding_length")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": width,
        "intermediate_size": gguf.value("llama.feed_forward_length"),
        "num_hidden_layers": gguf.value("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": gguf.value("llama.attention.head_count_kv"),
        "head_dim": width // heads,
        "max_position_embeddings": gguf.value("llama.context_length"),
        "rms_norm_eps": round(gguf.value("llama.attention.layer_norm_rms_epsilon"), 9),
        "rope_theta": gguf.value("llama.rope.freq_base"),
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in gguf.reader.tensors),
        "vocab_size": len(gguf.value("tokenizer.ggml.tokens")),
        "dtype": "bfloat16",
        **special,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(special, indent=2) + "\n")


def write_tokenizer(gguf: GgufFile, folder: Path) -> None:
    """Write a byte-level BPE that splits digits one by one, as SmolLM2's does (`tokenizer.ggml.pre`)."""
    from tokenizers import AddedToken, Tokenizer, decoders
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import PreTrainedTokenizerFast

    tokens: list[str] = gguf.value("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in gguf.value("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = gguf.value("tokenizer.ggml.token_type")
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == CONTROL_TOKEN
        ]
    )

    def special(name: str) -> str:
        token_id: int = gguf.value(f"tokenizer.ggml.{name}_token_id")
        return tokens[token_id]

    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=special("bos"),
        eos_token=special("eos"),
        unk_token=special("unknown"),
        pad_token=special("padding"),
        model_max_length=gguf.value("llama.context_length"),
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = gguf.value("tokenizer.chat_template")
    fast.save_pretrained(folder)
