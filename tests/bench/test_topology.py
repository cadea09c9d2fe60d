import json
from itertools import count
from pathlib import Path

import pytest

from orthrus.bench.shapes import Mix
from orthrus.bench.spec import Devices, Server, SpecError, Topology
from orthrus.bench.topology import GIB, layout, serves

SERVER = Server(kv_cache_gib=2, max_model_len=512, flags=["--enforce-eager"], env={"A": "1"})


def build(name, ids=(0, 1), kind="cpu", **more):
    ports = count(9001)
    topology = Topology.model_validate({"topology": name, **more})
    devices = Devices(kind=kind, ids=list(ids))
    return layout(topology, "a-model", SERVER, devices, ports.__next__, Path("scratch"))


def flag(plan, name):
    values = [part.partition("=")[2] for part in plan.command if part.startswith(f"--{name}=")]
    return values[0] if values else None


def module(plan):
    return plan.command[plan.command.index("-m") + 1]


def test_dedicated_gives_the_first_devices_to_embeddings():
    found = build("dedicated:1+2", ids=(3, 5, 7))
    assert [(plan.device, plan.roles) for plan in found.plans] == [
        (3, ("embed",)),
        (5, ("generate",)),
        (7, ("generate",)),
    ]
    assert found.embed == ["http://127.0.0.1:9001"]
    assert found.generate == ["http://127.0.0.1:9002", "http://127.0.0.1:9003"]
    embedder, generator, _ = found.plans
    assert {module(plan) for plan in found.plans} == {"orthrus.server.stock"}
    assert (flag(embedder, "runner"), flag(embedder, "convert")) == ("pooling", "embed")
    assert json.loads(flag(embedder, "pooler-config")) == {"pooling_type": "MEAN"}
    assert flag(generator, "runner") is None


def test_one_sided_dedicated_serves_its_own_kind_only():
    assert [plan.roles for plan in build("dedicated:0+1").plans] == [("generate",)]
    only_embed = Topology(topology="dedicated:1+0")
    assert serves(only_embed, Mix(name="e", embed_share=1))
    assert not serves(only_embed, Mix(name="m", embed_share=0.5))
    assert serves(Topology(topology="orthrus"), Mix(name="m", embed_share=0.5))


def test_colocated_servers_halve_the_kv_memory_of_their_device():
    found = build("colocated")
    assert [(plan.device, plan.roles) for plan in found.plans] == [
        (0, ("embed",)),
        (0, ("generate",)),
        (1, ("embed",)),
        (1, ("generate",)),
    ]
    assert {flag(plan, "kv-cache-memory-bytes") for plan in found.plans} == {str(GIB)}


@pytest.mark.parametrize(
    ("name", "policy"), [("unified-homo", "homogeneous"), ("unified-hetero", "fcfs"), ("orthrus", "ibs")]
)
def test_unified_topologies_differ_in_the_policy_only(name, policy):
    found = build(name)
    assert [plan.device for plan in found.plans] == [0, 1]
    assert found.embed == found.generate == [plan.url for plan in found.plans]
    for plan in found.plans:
        assert module(plan) == "orthrus.server.command"
        assert (flag(plan, "policy"), flag(plan, "pooling")) == (policy, "mean")
        assert flag(plan, "kv-cache-memory-bytes") == str(2 * GIB)


@pytest.mark.parametrize("name", ["dedicated:1+1", "colocated", "unified-homo", "orthrus", "disagg-pd"])
def test_kv_memory_of_a_device_is_the_same_everywhere(name):
    total = {0: 0, 1: 0}
    for plan in build(name).plans:
        total[plan.device] += int(flag(plan, "kv-cache-memory-bytes"))
        assert plan.command[3] == "a-model"
        assert "--enforce-eager" in plan.command
        assert (flag(plan, "dtype"), flag(plan, "max-model-len")) == ("bfloat16", "512")
        assert plan.env == {"A": "1", "VLLM_CPU_OMP_THREADS_BIND": str(plan.device)}
    assert total == {0: 2 * GIB, 1: 2 * GIB}


def test_a_shared_gpu_is_asked_for_in_parts():
    alone, shared = build("orthrus", kind="gpu").plans[1], build("colocated", kind="gpu").plans[0]
    assert alone.env["CUDA_VISIBLE_DEVICES"] == "1"
    assert flag(alone, "gpu-memory-utilization") is None
    assert flag(shared, "gpu-memory-utilization") == "0.45"


def test_disaggregated_prefill_on_two_and_on_four_devices():
    two, four = build("disagg-pd"), build("disagg-pd", ids=(0, 1, 2, 3))
    assert [(plan.device, plan.roles[0]) for plan in two.plans] == [
        (0, "embed"),
        (0, "prefill"),
        (1, "generate"),
    ]
    assert [(plan.device, plan.roles[0]) for plan in four.plans] == [
        (1, "embed"),
        (0, "prefill"),
        (2, "generate"),
        (3, "generate"),
    ]
    connector = json.loads(flag(two.plans[1], "kv-transfer-config"))
    assert connector["kv_connector"] == "ExampleConnector"
    assert connector["kv_connector_extra_config"] == {"shared_storage_path": "scratch"}
    assert flag(two.plans[0], "kv-transfer-config") is None


def test_flags_of_a_topology_come_last_and_reach_its_servers_only():
    plan = build("orthrus", flags=["--embed-chunk=64"], label="small chunks").plans[0]
    assert plan.command[-2:] == ("--enforce-eager", "--embed-chunk=64")
    assert Topology(topology="orthrus", label="small chunks").name == "small-chunks"


def test_external_servers_are_not_started():
    one, two = build("external:http://a:1/"), build("external:http://a:1,http://b:2")
    assert (one.plans, one.embed, one.generate) == ([], ["http://a:1"], ["http://a:1"])
    assert (two.embed, two.generate) == (["http://b:2"], ["http://a:1"])


@pytest.mark.parametrize(
    ("name", "ids", "message"),
    [
        ("dedicated:2+1", (0, 1), r"dedicated:2\+1 needs 3 devices, devices.ids has 2"),
        ("dedicated:0+0", (0, 1), "needs at least 1"),
        ("disagg-pd", (0,), "needs at least 2 devices"),
    ],
)
def test_topologies_that_do_not_fit_the_devices(name, ids, message):
    with pytest.raises(SpecError, match=message):
        build(name, ids=ids)
