"""Looking up what was measured, for the lines that set it beside the paper's values."""

from __future__ import annotations

from dataclasses import dataclass

from orthrus.bench.report import Table, number


@dataclass(frozen=True)
class Line:
    """One quantity: the paper's value as printed there, and ours."""

    quantity: str
    paper: str
    ours: str


class View:
    """Looks up medians in a table by topology prefix, workload and load."""

    def __init__(self, found: Table) -> None:
        self._found = found
        self.workloads = list(dict.fromkeys(key[1] for key in found.rows))
        self.topologies = list(dict.fromkeys(key[0] for key in found.rows))
        self.loads = list(dict.fromkeys(key[2] for key in found.rows))

    def get(self, topology: str, workload: str, figure: str, load: str | None = None) -> float | None:
        """Median of a figure; the topology is the first that starts with `topology`, the load the first."""
        for key in self._found.rows:
            if key[0].startswith(topology) and key[1] == workload and key[2] == (load or self.loads[0]):
                value = self._found.median(key, figure)
                if value is not None:
                    return value
        return None

    def over(self, figure: str, mine: str, theirs: str, workload: str, load: str | None = None) -> str:
        """The ratio of two topologies' medians, such as "1.32×"; a dash where one is missing."""
        first, second = self.get(mine, workload, figure, load), self.get(theirs, workload, figure, load)
        return f"{first / second:.2f}×" if first and second else "–"

    def show(self, topology: str, workload: str, figure: str, load: str | None = None) -> str:
        """A median as text; a dash where it is missing."""
        value = self.get(topology, workload, figure, load)
        return "–" if value is None else number(value)

    def range(self, topology: str, figure: str) -> str:
        """Least to greatest median over the workloads."""
        values = [value for w in self.workloads if (value := self.get(topology, w, figure)) is not None]
        return f"{number(min(values))}–{number(max(values))}" if values else "–"
