"""Cells of a benchmark: one workload on one topology under one load, once. Their files and their order."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orthrus.bench.shapes import AnyWorkload
from orthrus.bench.spec import AnyLoad, Spec, Topology, fits
from orthrus.bench.topology import serves


@dataclass(frozen=True)
class Cell:
    """One measurement. `stem` names its files below raw/."""

    repetition: int
    topology: Topology
    workload: AnyWorkload
    load: AnyLoad

    @property
    def stem(self) -> str:
        """File name without suffix, unique within a spec."""
        return f"{self.topology.name}__{self.workload.name}__{self.load.label()}__r{self.repetition}"

    @property
    def key(self) -> tuple[str, str, str]:
        """Topology, workload and load: what repetitions have in common."""
        return self.topology.name, self.workload.name, self.load.label()

    def seed(self, spec: Spec) -> int:
        """Seed of prompts and arrivals: the same on every topology, another in each repetition."""
        return spec.seed + self.repetition

    def digest(self, spec: Spec) -> str:
        """Changes with everything in the spec that this cell depends on, and with nothing else."""
        document = spec.model_dump(
            mode="json",
            include={
                "model",
                "num_warmups",
                "drain_seconds",
                "routing",
                "server",
                "devices",
                "extra_body",
            },
        )
        for name in ("topology", "workload", "load"):
            document[name] = getattr(self, name).model_dump(mode="json")
        document["seed"] = self.seed(spec)
        return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def groups(spec: Spec) -> Iterator[tuple[int, Topology, list[Cell]]]:
    """Cells in the order they are measured: each repetition visits every topology (A B A B), which is started
    once for all its workloads and loads. Cells that a topology cannot serve are left out.
    """
    for repetition in range(spec.repetitions):
        for topology in spec.topologies:
            cells = [
                Cell(repetition, topology, workload, load)
                for workload in spec.expanded()
                for load in spec.load
                if fits(workload, load) and serves(topology, workload)
            ]
            yield repetition, topology, cells


@dataclass(frozen=True)
class Store:
    """The folder of one benchmark's results."""

    folder: Path

    @property
    def raw(self) -> Path:
        """Records (*.jsonl), cell results (*.json) and server logs."""
        return self.folder / "raw"

    def records_path(self, cell: Cell) -> Path:
        """Where the client writes a cell's records."""
        return self.raw / f"{cell.stem}.jsonl"

    def result(self, cell: Cell, spec: Spec) -> dict[str, Any] | None:
        """The result of a finished cell, or None when it is missing or belongs to another spec."""
        path = self.raw / f"{cell.stem}.json"
        if not path.is_file():
            return None
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return document if document["digest"] == cell.digest(spec) else None

    def save(self, cell: Cell, spec: Spec, document: dict[str, Any]) -> None:
        """Write a cell's result whole or not at all: its presence says that the cell is finished."""
        path = self.raw / f"{cell.stem}.json"
        draft = path.with_suffix(".json.part")
        draft.write_text(json.dumps({"digest": cell.digest(spec), **document}, indent=1), encoding="utf-8")
        os.replace(draft, path)

    def has_results(self) -> bool:
        """Whether any cell was finished here."""
        return any(self.raw.glob("*.json"))
