import hashlib

import numpy as np
import pytest
import tiny_gguf
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from orthrus.models.gguf_llama import convert, unpermute


@given(heads=st.integers(1, 6), half=st.integers(1, 8), columns=st.integers(1, 5))
def test_unpermute_turns_interleaved_rotary_pairs_into_halves(heads, half, columns):
    # llama.cpp stores row 2*i + j of a head where Hugging Face has row j*half + i.
    rows = np.arange(heads * half * 2 * columns, dtype=np.float32).reshape(-1, columns)
    interleaved = np.empty_like(rows)
    for head in range(heads):
        base = head * half * 2
        for i in range(half):
            for j in range(2):
                interleaved[base + 2 * i + j] = rows[base + j * half + i]
    assert np.array_equal(unpermute(interleaved, heads), rows)


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def original_and_folder(request, tmp_path):
    original = tiny_gguf.random_llama(tied=request.param)
    tiny_gguf.write(original, tmp_path / "tiny.gguf")
    folder = tmp_path / "converted"
    folder.mkdir()
    convert(tmp_path / "tiny.gguf", folder)
    return original, folder


def test_the_converted_model_computes_what_the_original_does(original_and_folder):
    original, folder = original_and_folder
    converted = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.arange(40).unsqueeze(0) * 5 % len(tiny_gguf.TOKENS)
    with torch.no_grad():
        assert torch.equal(converted(ids).logits, original(ids).logits)


def test_weights_are_bfloat16_and_tied_embeddings_are_stored_once(original_and_folder):
    original, folder = original_and_folder
    stored = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    expected = {name for name, _ in original.named_parameters()}
    assert set(stored) == expected
    assert ("lm_head.weight" in stored) is not original.config.tie_word_embeddings


def test_the_same_gguf_gives_the_same_bytes(original_and_folder):
    _, folder = original_and_folder
    again = folder.parent / "again"
    again.mkdir()
    convert(folder.parent / "tiny.gguf", again)
    names = sorted(file.name for file in folder.iterdir())
    assert names == sorted(file.name for file in again.iterdir())
    for name in names:
        sums = {hashlib.sha256((place / name).read_bytes()).hexdigest() for place in (folder, again)}
        assert len(sums) == 1, name


def test_the_tokenizer_merges_letters_but_never_digits(original_and_folder):
    tokenizer = AutoTokenizer.from_pretrained(original_and_folder[1])
    # "12" and " 1" have merges in the vocabulary; digits are split off before they could apply.
    tokens = tokenizer.convert_ids_to_tokens(tokenizer("he 12")["input_ids"])
    assert tokens == ["he", "Ġ", "1", "2"]
    assert tokenizer("<|im_end|>")["input_ids"] == [2]
    assert tokenizer.model_max_length == 512
    chat = [{"role": "user", "content": "he"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "<|im_start|>he<|im_end|>"


def test_generation_ends_at_the_end_of_a_turn(original_and_folder):
    config = GenerationConfig.from_pretrained(original_and_folder[1])
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (1, 2, 2)
