from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from orthrus.bench.shapes import Dataset, Embed, Generate, LogNormal, Mix, Phases, Sessions, Trace
from orthrus.bench.spec import SpecError
from orthrus.bench.workload import HIGH_ID, LOW_ID, embed_clients, kinds, units, units_of_kind


def first(workload, count, seed=0):
    return list(islice(units(workload, seed, "no-model"), count))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.3, 0.5, 0.9, 1.0])
def test_every_block_holds_the_share_exactly(share):
    sequence = list(islice(kinds(share, seed=7), 400))
    for start in range(0, 400, 20):
        assert Counter(sequence[start : start + 20])["embed"] == round(20 * share)


def test_the_order_within_blocks_depends_on_the_seed_only():
    assert list(islice(kinds(0.3, 1), 50)) == list(islice(kinds(0.3, 1), 50))
    assert list(islice(kinds(0.3, 1), 50)) != list(islice(kinds(0.3, 2), 50))


def test_fixed_lengths_are_exact_and_ids_ordinary():
    mix = Mix(name="m", embed=Embed(tokens=37), generate=Generate(prompt_tokens=11, output_tokens=5))
    for (request,) in first(mix, 20):
        assert len(request.prompt) == (37 if request.kind == "embed" else 11)
        assert request.output_tokens == (0 if request.kind == "embed" else 5)
        assert all(LOW_ID <= token < HIGH_ID for token in request.prompt)


def test_equal_seeds_give_equal_requests_and_prompts_differ_within_one():
    mix = Mix(name="m", embed=Embed(tokens=LogNormal(median=50, sigma=0.7, max=400)))
    assert first(mix, 40, seed=3) == first(mix, 40, seed=3)
    assert first(mix, 40, seed=3) != first(mix, 40, seed=4)
    assert len({unit[0].prompt for unit in first(mix, 40)}) == 40


def test_log_normal_lengths_keep_bounds_and_median():
    mix = Mix(name="m", embed_share=1, embed=Embed(tokens=LogNormal(median=100, sigma=0.5, min=60, max=300)))
    lengths = sorted(len(unit[0].prompt) for unit in first(mix, 801))
    assert lengths[0] == 60
    assert 250 < lengths[-1] <= 300
    assert abs(lengths[400] - 100) <= 6  # standard error of the median here: 2.2 tokens


def test_dataset_rows_are_used_once_each_before_any_twice(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"tokens": 3}\n{"token_ids": [5, 6, 7, 8]}\n\n{"tokens": 90}\n')
    mix = Mix(name="m", embed_share=1, embed=Embed(tokens=Dataset(dataset=path, max=10)))
    requests = [unit[0] for unit in first(mix, 6)]
    assert sorted(len(request.prompt) for request in requests[:3]) == [3, 4, 10]
    assert [len(r.prompt) for r in requests[:3]] == [len(r.prompt) for r in requests[3:]]
    assert (5, 6, 7, 8) in {request.prompt for request in requests}


def test_dataset_errors_name_the_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"tokens": 3}\n{"length": 3}\n')
    mix = Mix(name="m", embed_share=1, embed=Embed(tokens=Dataset(dataset=path)))
    with pytest.raises(SpecError, match=r"rows.jsonl:2: needs `tokens`"):
        first(mix, 1)


def test_phases_have_their_own_shares_and_requests():
    phases = Phases(name="p", type="phases", embed_shares=[0.1, 0.9])
    early = list(islice(units(phases, 0, "no-model", 0), 20))
    late = list(islice(units(phases, 0, "no-model", 1), 20))
    assert sum(unit[0].kind == "embed" for unit in early) == 2
    assert sum(unit[0].kind == "embed" for unit in late) == 18
    assert {unit[0].phase for unit in late} == {1}
    assert not {unit[0].id for unit in early} & {unit[0].id for unit in late}


def test_a_session_alternates_and_pauses_for_the_search():
    sessions = Sessions(name="s", type="sessions", rounds=2, search_seconds=0.5)
    one, two = first(sessions, 2)
    assert [request.kind for request in one] == ["embed", "generate"] * 2
    assert [request.pause for request in one] == [0, 0.5, 0, 0.5]
    assert {request.session for request in two} == {1}
    assert len({request.id for request in one + two}) == 8


def test_trace_is_sorted_and_scaled(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"at": 4, "kind": "embed", "tokens": 9}\n'
        '{"at": 1, "kind": "generate", "tokens": 5, "output_tokens": 2, "adapter": "a"}\n'
    )
    (early,), (late,) = units(Trace(name="t", type="trace", path=path, speed=2), 0, "no-model")
    assert (early.at, early.kind, len(early.prompt), early.output_tokens, early.adapter) == (
        0.5,
        "generate",
        5,
        2,
        "a",
    )
    assert (late.at, late.kind, len(late.prompt)) == (2.0, "embed", 9)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"at": 0, "kind": "chat", "tokens": 1}', "kind is 'chat'"),
        ('{"at": -1, "kind": "embed", "tokens": 1}', "at is -1"),
        ('{"at": 0, "kind": "embed", "tokens": 0}', "tokens is 0"),
        ('{"at": 0, "kind": "generate", "tokens": 3}', "output_tokens is None"),
        ("[1]", "must be a JSON object"),
        ("{", "not JSON"),
    ],
)
def test_trace_errors_name_line_and_field(tmp_path: Path, line, message):
    path = tmp_path / "trace.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(SpecError, match=r"trace.jsonl:1: .*" + message.replace("[", r"\[")):
        list(units(Trace(name="t", type="trace", path=path), 0, "no-model"))


def test_clients_that_keep_to_a_kind():
    mix = Mix(name="m")
    embeds = list(islice(units_of_kind(mix, 0, "no-model", "embed"), 5))
    generations = list(islice(units_of_kind(mix, 0, "no-model", "generate"), 5))
    assert {unit[0].kind for unit in embeds} == {"embed"}
    assert not {unit[0].id for unit in embeds} & {unit[0].id for unit in generations}
    assert [embed_clients(share, 20) for share in (0, 0.01, 0.1, 0.5, 0.99, 1)] == [0, 1, 2, 10, 19, 20]
