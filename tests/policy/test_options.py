"""Options are checked where they are made."""

import math

import pytest

from orthrus.policy.options import OptionError, PolicyOptions


def test_defaults_are_the_papers_but_for_a_ttft_target():
    options = PolicyOptions()
    assert (options.embed_chunk, options.prefill_chunk, options.embed_bias) == (256, 0, 1.0)
    assert (options.max_embed_share, options.count_decode, options.ttft_target_s) == (1.0, False, 0.5)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("embed_chunk", 0, "embed_chunk is 0, must be a whole number of at least 1"),
        ("embed_chunk", 1.5, "embed_chunk is 1.5, must be a whole number of at least 1"),
        ("embed_chunk", True, "embed_chunk is True, must be a whole number of at least 1"),
        ("prefill_chunk", -1, "prefill_chunk is -1, must be a whole number of at least 0"),
        ("embed_bias", 0, "embed_bias is 0, must be a number from 0.001 to 1000"),
        ("embed_bias", math.nan, "embed_bias is nan, must be a number from 0.001 to 1000"),
        ("embed_bias", math.inf, "embed_bias is inf, must be a number from 0.001 to 1000"),
        ("embed_bias", 10**400, f"embed_bias is {10**400}, must be a number from 0.001 to 1000"),
        (
            "max_embed_share",
            0.0,
            "max_embed_share is 0.0, must be a number from 0.001 to 1",
        ),
        (
            "max_embed_share",
            1.01,
            "max_embed_share is 1.01, must be a number from 0.001 to 1",
        ),
        (
            "max_embed_share",
            "1",
            "max_embed_share is '1', must be a number from 0.001 to 1",
        ),
        ("count_decode", 1, "count_decode is 1, must be true or false"),
        (
            "ttft_target_s",
            -1,
            "ttft_target_s is -1, must be a number from 0 to 86400 (seconds)",
        ),
    ],
)
def test_bad_values_are_named(field, value, message):
    with pytest.raises(OptionError) as caught:
        PolicyOptions(**{field: value})
    assert str(caught.value) == message
    assert caught.value.field == field


def test_limits_are_allowed():
    PolicyOptions(embed_chunk=1, prefill_chunk=1, embed_bias=0.001, max_embed_share=0.001, ttft_target_s=0)
    PolicyOptions(embed_bias=1000, max_embed_share=1, ttft_target_s=86_400)
