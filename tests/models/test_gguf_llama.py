import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from orthrus.models.gguf_llama import unpermute


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
