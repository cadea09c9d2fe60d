"""Policies by name, and no option that does nothing."""

import pytest

from orthrus.policy.options import OptionError, PolicyOptions
from orthrus.policy.registry import POLICIES, make


def test_names():
    assert list(POLICIES) == ["ibs", "fcfs", "homogeneous"]
    assert [make(name).name for name in POLICIES] == list(POLICIES)


def test_unknown_name_lists_the_known_ones():
    with pytest.raises(OptionError, match=r"policy is 'lifo', must be one of ibs, fcfs, homogeneous"):
        make("lifo")


def test_an_option_that_the_policy_does_not_use_is_refused():
    with pytest.raises(
        OptionError, match=r"embed_bias is 2, must be left at its default 1\.0: policy 'fcfs'"
    ):
        make("fcfs", PolicyOptions(embed_bias=2))
    make("fcfs", PolicyOptions(prefill_chunk=64))
    make("ibs", PolicyOptions(embed_bias=2, ttft_target_s=1.0))
