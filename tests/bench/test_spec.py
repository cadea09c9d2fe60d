from pathlib import Path

import pytest
import yaml

from orthrus.bench.shapes import Mix
from orthrus.bench.spec import SpecError, load_spec, parse_spec

GOOD = {
    "name": "try",
    "model": "smollm2",
    "workloads": [{"name": "half", "embed_share": 0.5}],
    "topologies": ["orthrus", {"topology": "dedicated:1+1", "flags": ["--enforce-eager"]}],
    "load": [{"type": "closed", "max_concurrency": 4, "seconds": 10}],
}


def parse(**changes):
    return parse_spec({**GOOD, **changes}, "SPEC.yaml", Path("."))


def test_a_file_is_read_with_paths_relative_to_it(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"tokens": 3}\n')
    document = {**GOOD, "workloads": [{"name": "d", "embed": {"tokens": {"dataset": "rows.jsonl"}}}]}
    path = tmp_path / "SPEC.yaml"
    path.write_text(yaml.safe_dump(document))
    workload = load_spec(path).workloads[0]
    assert workload.embed.tokens.dataset == (tmp_path / "rows.jsonl").resolve()


def test_sweeps_are_written_out_with_names_and_places():
    spec = parse(
        workloads=[
            {"name": "mix", "sweep": {"embed_share": [0.1, 0.9]}},
            {"name": "out", "sweep": {"output_tokens": [16, 256]}},
        ]
    )
    found = spec.expanded()
    assert [workload.name for workload in found] == ["mix-0.1", "mix-0.9", "out-16", "out-256"]
    assert isinstance(found[1], Mix)
    assert (found[1].embed_share, found[1].x) == (0.9, 0.9)
    assert (found[3].generate.output_tokens, found[3].x) == (256, 256)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"modle": "x"}, "modle: unknown key"),
        (
            {"workloads": [{"name": "h", "embed_share": 1.5}]},
            "workloads.0.mix.embed_share: .*less than or equal",
        ),
        ({"workloads": [{"name": "h", "embed": {"tokens": 0}}]}, "workloads.0.mix.embed.tokens"),
        ({"workloads": []}, "workloads: .*at least 1 item"),
        ({"topologies": ["dedicated:1"]}, "topologies.0.*'dedicated:1' is no topology; allowed: dedicated:K"),
        ({"topologies": ["orthrus", "orthrus"]}, "the names \\['orthrus'\\] occur more than once"),
        ({"load": [{"type": "closed", "max_concurrency": 4}]}, "exactly one of seconds and num_prompts"),
        ({"load": [{"type": "open", "request_rate": 0, "seconds": 1}]}, "load.0.open.request_rate"),
        ({"load": [{"type": "steady"}]}, "load.0: .*'closed', 'open', 'trace'"),
        ({"goodput": {"tft": 100}}, "goodput: tft: 100 is not allowed; keys: ttft, tpot, e2el, embed_e2el"),
        ({"devices": {"ids": [0, 0]}}, "devices.ids: must be different numbers"),
        ({"server": {"adapters": {"a": {}}}}, "server.adapters.a: exactly one of path and rank"),
        ({"workloads": [{"name": "h", "embed": {"adapter": "a"}}]}, "h asks for the adapters \\['a'\\]"),
        ({"workloads": [{"name": "h", "sweep": {}}]}, "sweep: exactly one of"),
        ({"load": [{"type": "trace"}]}, "half fits no load"),
    ],
)
def test_errors_name_the_field_and_what_is_allowed(changes, message):
    with pytest.raises(SpecError, match=message):
        parse(**changes)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(SpecError, match=r"no-such\.yaml: No such file"):
        load_spec(tmp_path / "no-such.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1")
    with pytest.raises(SpecError, match="not YAML"):
        load_spec(broken)
    broken.write_text("just text")
    with pytest.raises(SpecError, match="must be a mapping"):
        load_spec(broken)
    with pytest.raises(SpecError, match=r"rows\.jsonl: no such file"):
        parse_spec(
            {**GOOD, "workloads": [{"name": "d", "embed": {"tokens": {"dataset": "rows.jsonl"}}}]},
            "SPEC.yaml",
            tmp_path,
        )


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "bench-specs").glob("*.yaml")), ids=lambda path: path.stem
)
def test_the_specs_we_ship_are_valid_and_named_after_their_files(path):
    assert load_spec(path).name == path.stem
