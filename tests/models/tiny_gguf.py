"""A tiny Llama, and the same as llama.cpp's converter would store it."""

import gguf
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*SPECIAL, *sorted(ByteLevel.alphabet()), "he", "12", "Ġ1"]
MERGES = ["h e", "1 2", "Ġ 1"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
HEADS, KV_HEADS = 4, 2
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def random_llama(tied: bool) -> LlamaForCausalLM:
    """float32, with weights that bfloat16 holds exactly: a conversion must not change one bit."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=512,
        rms_norm_eps=1e-3,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        tie_word_embeddings=tied,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter).mul(0.3).bfloat16().float())
    return model


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Row by row what llama.cpp's converter does to q and k: halves of a head become neighbours."""
    size = weight.shape[0] // heads
    order = [h * size + j * size // 2 + i for h in range(heads) for i in range(size // 2) for j in range(2)]
    return weight[order]


def write(model: LlamaForCausalLM, path) -> None:
    """Store `model` as an F32 GGUF with a byte-level vocabulary of three merges."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(500.0)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, tensor in model.state_dict().items():
        if stored := gguf_name(name, config.tie_word_embeddings):
            heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(stored.split(".")[-2])
            writer.add_tensor(stored, (interleaved(tensor, heads) if heads else tensor).contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_name(name: str, tied: bool) -> str | None:
    """llama.cpp's name of a tensor, None where it stores none."""
    if name == "lm_head.weight":
        return None if tied else "output.weight"
    if name in ("model.embed_tokens.weight", "model.norm.weight"):
        return "token_embd.weight" if "embed" in name else "output_norm.weight"
    _, _, layer, *part, suffix = name.split(".")
    return f"blk.{layer}.{PARTS['.'.join(part)]}.{suffix}"
