"""The fill simulation: its books balance, and its modes differ as they should."""

import pytest

from orthrus.policy.work import Chunk, Kind
from orthrus.sim.fill import _Replica, simulate
from orthrus.sim.scenario import Embedding, FillScenario, ScenarioError

SHORT = {"window_s": 4.0, "warmup_s": 1.0}


def test_equal_scenarios_give_equal_results_and_seeds_matter():
    scenario = FillScenario(**SHORT, embed_min_tokens=16)
    assert simulate(scenario, Embedding.CHUNKED) == simulate(scenario, Embedding.CHUNKED)
    other = FillScenario(**SHORT, embed_min_tokens=16, seed=1)
    assert simulate(scenario, Embedding.CHUNKED) != simulate(other, Embedding.CHUNKED)


def test_embeddings_alone_fill_every_step_at_the_clocks_rate():
    scenario = FillScenario(**SHORT, generation_clients=0)
    for embedding in Embedding:
        result = simulate(scenario, embedding)
        assert result.fill == result.fill_by_time == 1.0
        assert result.embedding_per_s == pytest.approx(1 / (100e-6 + 256 * 98e-6), rel=0.02)


def test_throughput_balances_with_the_tokens_run():
    scenario = FillScenario(window_s=12.0)
    for embedding in Embedding:
        result = simulate(scenario, embedding)
        # a generation is its prompt and its decodes; its first output token comes with the prefill
        per_s = result.generation_per_s * (15 + 20) + result.embedding_per_s * 256
        run = result.fill * 256 * result.steps / 12.0
        assert per_s == pytest.approx(run, rel=0.02)


def test_an_atomic_embedding_never_shares_a_step_that_it_does_not_fit():
    replica = _Replica(FillScenario(), Embedding.ATOMIC)
    assert replica.view().admit(next(iter(replica.embed))) is None
    replica.decoding["g"] = 3
    refusal = replica.view().admit(next(iter(replica.embed)))
    assert refusal == "token_budget"


def test_whole_chunks_drop_only_a_chunk_cut_short_by_the_budget():
    replica = _Replica(FillScenario(embed_min_tokens=100, embed_max_tokens=100), Embedding.WHOLE_CHUNKS)
    first = next(iter(replica.embed)).request_id
    whole, tail, cut = (Chunk(first, Kind.EMBED, tokens) for tokens in (64, 36, 20))
    assert replica.whole([whole]) == [whole]
    assert replica.whole([whole, tail]) == [whole, tail]
    assert replica.whole([whole, cut]) == [whole]
    assert replica.whole([]) == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"budget": 0}, "budget is 0, must be finite and greater than 0"),
        ({"step_s": -1.0}, "step_s is -1.0, must be finite and at least 0"),
        ({"token_s": float("nan")}, "token_s is nan"),
        ({"embed_max_tokens": 300}, "at most the budget of 256"),
        ({"embed_min_tokens": 200, "embed_max_tokens": 100}, "must be in order"),
        ({"chunk": 300}, "chunk is 300, must be at most the budget of 256"),
    ],
)
def test_bad_scenarios_are_refused(fields, message):
    with pytest.raises(ScenarioError, match=message):
        FillScenario(**fields)


def test_a_window_without_a_step_is_refused():
    with pytest.raises(ScenarioError, match="long enough for one step"):
        simulate(FillScenario(warmup_s=0.001, window_s=1e-9), Embedding.CHUNKED)
