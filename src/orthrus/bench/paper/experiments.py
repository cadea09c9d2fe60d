"""Each table and figure: its spec, the published values beside ours, and what differs in the set-up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import as_file, files

from orthrus.bench.paper.view import Line, View
from orthrus.bench.report import number
from orthrus.bench.spec import Devices, Spec, Topology, load_spec

SETUP = (
    "The paper: up to four A100 (40 GB), models below 10B parameters, 512 clients for 180 s. Ours: the "
    "machine, model, clients and windows in the report; a CPU device is one core.",
    "On one core, compute and memory do not overlap, so a mixed step costs about the sum of its parts; on a "
    "GPU a decode batch leaves compute idle. Ratios between topologies compare; absolute values do not.",
)
DEDICATED = "dedicated"


def fig3(view: View) -> list[Line]:
    """Throughput at every ratio."""
    baselines = [name for name in view.topologies if name != "orthrus"]
    return [
        Line(
            f"{workload}: requests/s, orthrus over {baseline}",
            "1.28–4.52× (GPU-level splits, over all ratios)"
            if baseline.startswith(DEDICATED)
            else "above 1×",
            view.over("requests_per_s", "orthrus", baseline, workload),
        )
        for workload in view.workloads
        for baseline in baselines
    ]


def fig5(view: View) -> list[Line]:
    """Utilisation and phase completion."""
    (workload,) = view.workloads
    lines = [
        Line(f"average device utilisation, {topology}", paper, f"{100 * value:.0f} %" if value else "–")
        for topology, paper in ((DEDICATED, "38 %"), ("orthrus", "79 %"))
        for value in [view.get(topology, workload, "device_utilisation")]
    ]
    for phase, share in enumerate((10, 50, 90)):
        ratio = view.over(f"phase{phase}_seconds", "orthrus", DEDICATED, workload)
        lines.append(
            Line(f"phase {share} % embedding: completion time, orthrus over dedicated", "0.57×", ratio)
        )
    return lines


def fig6(view: View) -> list[Line]:
    """Overhead on pure workloads."""
    lines = []
    for workload, baseline in (("generate", "dedicated-0+1"), ("embed", "dedicated-1+0")):
        for load in view.loads:
            clients = int(load.removeprefix("c"))
            paper = "about 1× (saturation)" if clients >= 64 else "below 1×"
            if workload == "embed":
                paper = "about 1× or more" if clients >= 64 else "not stated"
            # By tokens: at one client a window holds so few requests that one more or less is per cents.
            ratio = view.over("work_per_s", "orthrus", baseline, workload, load)
            lines.append(Line(f"pure {workload}, {clients} clients: tokens/s over stock vLLM", paper, ratio))
    return lines


def fig7(view: View) -> list[Line]:
    """Chunk and budget sweeps."""
    paper = {
        "chunk": ("2.6167–2.6500", "4.08–4.16", "83.58–98.77"),
        "budget": ("within 1 %", "4.06–4.12", "82.95–109.35"),
    }
    (workload,) = view.workloads
    lines = []
    for group, (rate, generation, embedding) in paper.items():
        # The sweep of budgets holds the chunk at 512, so that row belongs to both.
        names = [
            n for n in view.topologies if n.startswith(group) or (group == "budget" and n == "chunk-512")
        ]
        for title, figure, theirs, scale in (
            ("combined requests/s", "requests_per_s", rate, 1.0),
            ("generation p99, s", "generate_e2el_p99_ms", generation, 1e-3),
            ("embedding p99, ms", "embed_e2el_p99_ms", embedding, 1.0),
        ):
            values = [value * scale for n in names if (value := view.get(n, workload, figure)) is not None]
            ours = "–"
            if values:
                swing = (max(values) - min(values)) / max(values)
                ours = f"{number(min(values))}–{number(max(values))} ({swing:.1%} apart)"
            lines.append(Line(f"{group} sweep: {title}", theirs, ours))
    return lines


def fig8(view: View) -> list[Line]:
    """Latency as the mix changes."""
    paper = {"0.1": ("1710", "below 200"), "0.5": ("327.35", "below 200"), "0.9": ("322.59", "below 200")}
    lines = []
    for workload in view.workloads:
        share = workload.removeprefix("mix-")
        p95, ttft = paper.get(share, ("not stated", "not stated"))
        for topology in ("orthrus", DEDICATED):
            who = f"{share} embedding, {topology}"
            shown = (p95, ttft) if topology == "orthrus" else ("not stated", "not stated")
            lines += [
                Line(
                    f"{who}: embedding p50, ms",
                    "278.70–301.87" if topology == "orthrus" else "not stated",
                    view.show(topology, workload, "embed_e2el_p50_ms"),
                ),
                Line(
                    f"{who}: embedding p95, ms", shown[0], view.show(topology, workload, "embed_e2el_p95_ms")
                ),
                Line(f"{who}: TTFT p99, ms", shown[1], view.show(topology, workload, "generate_ttft_p99_ms")),
            ]
    return lines


def tab3(view: View) -> list[Line]:
    """Iter-RetGen throughput (table 3) and latency (table 4)."""
    (workload,) = view.workloads
    published = {
        "orthrus": ("0.624", "593.4"),
        "unified-homo": ("0.548", "not stated"),
        "disagg-pd": ("0.603", "not stated"),
        DEDICATED: ("0.260", "1342.0"),
    }
    lines = []
    for topology, (rate, p99) in published.items():
        seconds = view.get(topology, workload, "session_e2el_p99_ms")
        lines += [
            Line(f"{topology}: sessions/s", rate, view.show(topology, workload, "sessions_per_s")),
            Line(f"{topology}: session p99, s", p99, "–" if seconds is None else number(seconds / 1e3)),
        ]
    lines.append(
        Line(
            "sessions/s, orthrus over dedicated",
            "2.40×",
            view.over("sessions_per_s", "orthrus", DEDICATED, workload),
        )
    )
    return lines


def tab9(view: View) -> list[Line]:
    """Chunked embedding alone."""
    (workload,) = view.workloads
    return [
        Line("atomic: mean latency, ms", "20.4", view.show("atomic", workload, "embed_e2el_mean_ms")),
        Line("chunked: mean latency, ms", "18.4", view.show("chunked", workload, "embed_e2el_mean_ms")),
        Line("atomic: embeddings/s", "49.0", view.show("atomic", workload, "embed_requests_per_s")),
        Line("chunked: embeddings/s", "54.4", view.show("chunked", workload, "embed_requests_per_s")),
        Line(
            "throughput, chunked over atomic",
            "1.11×",
            view.over("embed_requests_per_s", "chunked", "atomic", workload),
        ),
    ]


def tab10(view: View) -> list[Line]:
    """Decode lengths."""
    lines = [
        Line(
            "orthrus: embedding p99 over all decode lengths, ms",
            "53.09–59.92",
            view.range("orthrus", "embed_e2el_p99_ms"),
        ),
        Line(
            "orthrus: generation p99 over all decode lengths, ms",
            "7060–79680",
            view.range("orthrus", "generate_e2el_p99_ms"),
        ),
    ]
    for workload in view.workloads:
        tokens = workload.removeprefix("decode-")
        for figure, title in (
            ("embed_e2el_p99_ms", "embedding p99, ms"),
            ("generate_ttft_p99_ms", "TTFT p99, ms"),
            ("generate_itl_p99_ms", "inter-token latency p99, ms"),
        ):
            split = view.show(DEDICATED, workload, figure)
            ours = f"{view.show('orthrus', workload, figure)} (dedicated {split})"
            lines.append(Line(f"{tokens} output tokens: {title}", "not stated", ours))
    return lines


def sec56(view: View) -> list[Line]:
    """Other models, and adapters."""
    lines = []
    for workload in view.workloads:
        paper = (
            "1.25× (Mistral 7B; embed 5.10→4.20, generate 29.56→39.10 req/s)"
            if workload == "mix-0.1"
            else "above 1×"
        )
        ratio = view.over("requests_per_s", "orthrus", DEDICATED, workload)
        lines.append(Line(f"{workload}: requests/s, orthrus over dedicated", paper, ratio))
    return lines


@dataclass(frozen=True)
class Experiment:
    """A table or figure. `differs` adds to SETUP; `models`, where not empty, are run one after another."""

    title: str
    lines: Callable[[View], list[Line]]
    differs: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


EXPERIMENTS: dict[str, Experiment] = {
    "fig3": Experiment("Throughput at every mix", fig3, ("The paper's split is 1:3 on four devices.",)),
    "fig5": Experiment("Three phases: utilisation and completion", fig5, ("The paper's split is 1:3.",)),
    "fig6": Experiment("Pure workloads against stock vLLM", fig6),
    "fig7": Experiment("Chunk size and token budget", fig7),
    "fig8": Experiment("Latency at every mix", fig8),
    "tab3": Experiment(
        "Iter-RetGen (tables 3 and 4)",
        tab3,
        (
            "The search is a pause of no time; documents do not depend on the query.",
            "disagg-pd moves KV blocks through files in memory (vLLM's ExampleConnector), not over NVLink.",
        ),
    ),
    "tab9": Experiment("Chunked embedding alone", tab9, ("The paper's model is OPT-1.3B.",)),
    "tab10": Experiment("Decode length", tab10, ("The paper's outputs are 256 to 4096 tokens.",)),
    "sec5.6": Experiment(
        "Other models, LoRA",
        sec56,
        ("Random small weights of each architecture; --model takes the real ones.",),
        ("tiny-mistral", "tiny-qwen2", "tiny-llama3.1"),
    ),
}


ELSEWHERE = {"tab7": "orthrus bench pooling", "tab8": "orthrus simulate fill"}
"""What another command of ours measures."""


def spec_of(name: str) -> Spec:
    """The spec of an experiment, from package data."""
    with as_file(files("orthrus.bench.paper") / "specs" / f"{name}.yaml") as path:
        return load_spec(path)


def on_devices(spec: Spec, devices: Devices) -> Spec:
    """The spec on other devices; `dedicated:1+1` becomes one embedder and the rest generators."""
    count = len(devices.ids)
    if len(spec.devices.ids) == 1:
        return spec.model_copy(update={"devices": devices.model_copy(update={"ids": devices.ids[:1]})})
    topologies = [
        Topology(topology=f"dedicated:1+{count - 1}", flags=topology.flags)
        if topology.topology == "dedicated:1+1"
        else topology
        for topology in spec.topologies
    ]
    return spec.model_copy(update={"devices": devices, "topologies": topologies})
