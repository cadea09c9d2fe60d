"""What /orthrus/state says of several replicas, and of settings that were left open."""

from __future__ import annotations

from types import SimpleNamespace

from orthrus.server.state import effective, together


def test_replicas_are_added_up_and_shown_apart():
    replicas = [
        {"scheduler": {"requests": 2, "running": 0}, "workers": [{"rows": 1}]},
        {"scheduler": {"requests": 3, "running": 1}, "workers": [{"rows": 4}, {"rows": 5}]},
    ]
    assert together(replicas) == {
        "scheduler": {"requests": 5, "running": 1},
        "workers": [{"rows": 1}, {"rows": 4}, {"rows": 5}],
        "replicas": replicas,
    }


def test_the_numbers_are_those_in_force():
    config = SimpleNamespace(
        additional_config={"orthrus": {"generation_slots": 16}},
        scheduler_config=SimpleNamespace(max_num_seqs=18),
    )
    settings = effective(config)
    assert settings["embed_slots"] == 2
    assert settings["pooling"] == "mean"
