"""Mixed steps with several batches in flight, as under pipeline parallelism and asynchronous scheduling.

Two pipeline stages are two processes; here one process runs vLLM's queue of batches over one stage. The
pipeline itself is in tests/server/test_parallel.py.
"""

from pathlib import Path

import pytest
from engine_driver import Job, assert_idle, assert_same_generation, cosine, embed, generate, run, tokens
from vllm.config import VllmConfig


@pytest.mark.parametrize("policy", ["ibs", "fcfs", "homogeneous"])
def test_every_answer_is_that_of_an_engine_without_a_queue(
    policy: str, engine, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [
        # Only embeddings, then both, then only generations; texts of several chunks among them.
        *(Job(f"early-{i}", tokens(i, 40 + 90 * i), embed(head)) for i, head in enumerate(("mean", "last"))),
        *(Job(f"writer-{i}", tokens(20 + i, 30 + 100 * i), generate(30), at=6 + i) for i in range(3)),
        *(Job(f"text-{i}", tokens(40 + i, 10 + 60 * i), embed("mean"), at=7 + 2 * i) for i in range(6)),
        Job("gone", tokens(60, 300), embed(), at=8, abort_at=10),
    ]
    wanted = run(engine(tiny_model, policy=policy, max_num_batched_tokens=80), jobs)
    monkeypatch.setattr(VllmConfig, "max_concurrent_batches", property(lambda self: 2))
    llm = engine(tiny_model, policy=policy, max_num_batched_tokens=80, max_num_seqs=31)
    assert llm.llm_engine.engine_core.engine_core.batch_queue is not None
    got = run(llm, jobs)
    assert set(got) - {"gone"} == set(wanted) - {"gone"}
    for name in set(wanted) - {"gone"}:
        if name.startswith("writer"):
            assert_same_generation(got[name], wanted[name], name)
        else:
            assert cosine(got[name], wanted[name]) > 0.999999, name
    assert_idle(llm)
