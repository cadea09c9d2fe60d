import pytest

from orthrus.bench.counters import Counters, parse, read
from orthrus.bench.run import counter_figures

TEXT = """# HELP vllm:iteration_tokens_total Histogram of number of tokens per engine_step.
# TYPE vllm:iteration_tokens_total histogram
vllm:iteration_tokens_total_bucket{engine="0",le="8.0",model_name="m"} 7.0
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 12.0
vllm:iteration_tokens_total_count{engine="1",model_name="m"} 3.0
vllm:iteration_tokens_total_sum{engine="0",model_name="m"} 900.0
vllm:iteration_tokens_total_created{engine="0",model_name="m"} 1.7e9
vllm:num_preemptions_total{engine="0",model_name="m"} 2.0
"""


def test_counts_are_summed_over_engines():
    assert parse(TEXT) == Counters(steps=15, tokens=900, preemptions=2)
    assert parse(TEXT).since(Counters(5, 400, 2)) == Counters(10, 500, 0)


def test_orthrus_own_counts_come_first():
    own = """orthrus:steps_total{mix="embed"} 1.0
orthrus:steps_total{mix="mixed"} 4.0
orthrus:scheduled_tokens_total{kind="embed"} 70.0
orthrus:scheduled_tokens_total{kind="decode"} 30.0
"""
    assert parse(own) == Counters(steps=5, tokens=100, preemptions=None)
    assert parse(own + TEXT) == Counters(steps=5, tokens=100, preemptions=2)
    assert parse("llamacpp:requests 1\n") is None


def test_servers_without_counters_are_no_error(fake_url):
    assert read([fake_url]) is None
    assert read(["http://127.0.0.1:9"]) is None


def test_figures_of_the_counters():
    assert counter_figures(Counters(20, 500, 1), 10.0) == pytest.approx(
        {"steps_per_s": 2, "tokens_per_step": 25, "preemptions": 1}
    )
    assert counter_figures(Counters(0, 0, None), 10.0) == {"steps_per_s": 0}
    assert counter_figures(None, 10.0) == {}
