"""Windows of long inputs: they cover every token, and their number is known before they are made."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orthrus.engine.compat import VLLMValidationError
from orthrus.server.windows import Windows, count, cut


@given(st.integers(1, 500), st.integers(1, 60), st.data())
def test_windows_cover_the_input_and_are_as_many_as_counted(tokens, length, data):
    overlap = data.draw(st.integers(0, length // 2).filter(lambda value: value < length))
    found = cut(tokens, length, overlap)
    assert len(found) == count(tokens, length, overlap)
    assert found[0][0] == 0
    assert found[-1][1] == tokens
    assert all(0 < end - start <= length for start, end in found)
    assert all(second[0] == first[1] - overlap for first, second in pairwise(found))


def test_too_many_windows_are_refused_before_any_is_made():
    inputs = [{"prompts": {"prompt_token_ids": range(length)}} for length in (100, 10**9)]
    context = SimpleNamespace(engine_inputs=inputs, pooling_params=SimpleNamespace())
    with pytest.raises(VLLMValidationError, match=r"into 20000000 windows; at most 64 are allowed"):
        Windows.of(context, length=100, overlap=50, most=64, normalize=None)
    assert context.engine_inputs is inputs
