"""A generation whose KV comes from elsewhere waits without holding up either kind, and then goes on."""

from pathlib import Path

import pytest
from bare_scheduler import answer, make_scheduler, request
from engine_driver import embed, generate
from vllm.config import KVTransferConfig
from vllm.v1.outputs import KVConnectorOutput

from orthrus.engine.scheduler import MixedScheduler

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("policy", ["ibs", "fcfs", "homogeneous"])
def test_remote_kv_beside_both_kinds(policy: str, tiny_model: Path):
    connector = KVTransferConfig(
        kv_connector="FakeRemote", kv_connector_module_path="remote_kv", kv_role="kv_both"
    )
    scheduler = make_scheduler(
        MixedScheduler,
        tiny_model,
        orthrus={"policy": policy},
        kv_transfer_config=connector,
        disable_hybrid_kv_cache_manager=True,
    )
    scheduler.add_request(request("remote-1", 90, generate(3)))
    scheduler.add_request(request("local", 40, generate(3)))
    scheduler.add_request(request("text", 300, embed()))
    finished: set[str] = set()
    for _ in range(12):
        output = scheduler.schedule()
        assert "remote-1" not in output.num_scheduled_tokens
        finished |= answer(scheduler, output)
    assert finished == {"local", "text"}
    scheduler.add_request(request("later", 200, embed()))
    scheduler._update_from_kv_xfer_finished(KVConnectorOutput(finished_recving={"remote-1"}))
    scheduled = []
    while scheduler.has_unfinished_requests():
        output = scheduler.schedule()
        scheduled.append(output.num_scheduled_tokens)
        finished |= answer(scheduler, output)
        assert len(scheduled) < 20
    assert finished == {"local", "text", "remote-1", "later"}
    assert [step["remote-1"] for step in scheduled if "remote-1" in step] == [1, 1, 1]
    assert sum(step.get("later", 0) for step in scheduled) == 200
    assert not any(scheduler.check_idle().values())
