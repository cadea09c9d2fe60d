"""Run a spec: start each topology, drive every cell from a client process, keep what was measured."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from orthrus.bench import adapters as lora
from orthrus.bench import counters
from orthrus.bench.ceiling import measured, model_size, utilisation
from orthrus.bench.cells import Cell, Store, groups
from orthrus.bench.counters import Counters
from orthrus.bench.driver import Job
from orthrus.bench.measure import Meter, Usage
from orthrus.bench.records import read_run
from orthrus.bench.servers import Running, ServerError, Servers, free_port
from orthrus.bench.spec import Server, Spec, SpecError
from orthrus.bench.summary import PERCENTILES, Figures, summarise
from orthrus.bench.tiny import locate
from orthrus.bench.topology import Layout, check_devices, layout

Tell = Callable[[str, float, float], None]
"""What is going on, seconds so far, and seconds it may take (0: not known)."""


class ClientError(RuntimeError):
    """The client process failed; the message is its own."""


@dataclass
class Outcome:
    """What a run did: cells measured now, cells kept from before, and failures by cell or topology."""

    measured: int = 0
    kept: int = 0
    failures: list[str] = field(default_factory=list)


class Bench:
    """One spec and its folder of results."""

    def __init__(self, spec: Spec, folder: Path, percentiles: tuple[float, ...] = PERCENTILES) -> None:
        """Checks everything that can be checked before a server starts; SpecError says what does not fit."""
        self.spec = spec
        self.store = Store(folder)
        self._percentiles = percentiles
        for topology in spec.topologies:
            check_devices(topology, spec.devices)
        self.groups = list(groups(spec))
        if not any(cells for _, _, cells in self.groups):
            raise SpecError("no topology of the spec serves any of its workloads")

    @cached_property
    def _model(self) -> str:
        """The checkpoint; a sample or tiny model is made when it is first needed."""
        return locate(self.spec.model)

    def plans(self) -> Iterator[tuple[str, Layout]]:
        """Every topology with the servers it would start (ports from 8001 on); fetches and writes nothing."""
        for topology in self.spec.topologies:
            ports = iter(range(8001, 9000))
            scratch = Path("SCRATCH")
            plan = layout(
                topology, self.spec.model, self._server(), self.spec.devices, ports.__next__, scratch
            )
            yield topology.name, plan

    def run(
        self, resume: bool, tell: Tell = lambda *_: None, done: Callable[[Cell], None] = lambda _: None
    ) -> Outcome:
        """Measure every cell that is not finished; SpecError if there are results and `resume` is not set.

        A topology that fails is noted and the next one follows. Ctrl-C ends the servers and is passed on.
        """
        if self.store.has_results() and not resume:
            raise SpecError(f"{self.store.folder} holds results; continue them with --resume, or give --out")
        self.store.raw.mkdir(parents=True, exist_ok=True)
        outcome = Outcome()
        for repetition, topology, cells in self.groups:
            pending = [cell for cell in cells if self.store.result(cell, self.spec) is None]
            outcome.kept += len(cells) - len(pending)
            for cell in cells:
                if cell not in pending:
                    done(cell)
            if not pending:
                continue
            try:
                with self._started(topology.name, pending[0], tell) as (plan, servers):
                    for cell in pending:
                        self._measure(cell, plan, servers, tell)
                        outcome.measured += 1
                        done(cell)
            except (ServerError, ClientError) as error:
                outcome.failures.append(f"{topology.name}, repetition {repetition}: {error}")
        return outcome

    def measure_ceiling(self) -> None:
        """Measure what a device can do at most, unless it is known; `results` then has the parts used."""
        measured(self.spec.devices, self.spec.server.dtype, self.store.folder)

    def results(self) -> dict[tuple[str, str, str], list[dict[str, Any]]]:
        """Finished cells by (topology, workload, load), in the order of their repetitions.

        Their `figures` are computed from the records anew, so that other percentiles or goals need no run.
        """
        found: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
        size, ceiling = model_size(Path(self._model), self.spec.server.dtype), None
        if (self.store.folder / "ceiling.json").is_file():
            ceiling = measured(self.spec.devices, self.spec.server.dtype, self.store.folder)
        devices = len(self.spec.devices.ids)
        for _, _, cells in self.groups:
            for cell in cells:
                result = self.store.result(cell, self.spec)
                if result is not None:
                    run = read_run(self.store.records_path(cell))
                    figures = summarise(run, self.spec.goodput, self.spec.work, self._percentiles)
                    figures |= result["usage_figures"]
                    if size and ceiling and result["servers"]:
                        figures |= utilisation(figures, devices, size, ceiling)
                    result["figures"] = figures
                    found.setdefault(cell.key, []).append(result)
        return found

    @property
    def _adapters(self) -> Path:
        return self.store.folder / "adapters"

    def _server(self) -> Server:
        own = [
            f"--served-model-name={self.spec.model}",
            *lora.lora_flags(self.spec.server.adapters, self._adapters),
        ]
        return self.spec.server.model_copy(update={"flags": [*own, *self.spec.server.flags]})

    @contextmanager
    def _started(self, name: str, cell: Cell, tell: Tell) -> Iterator[tuple[Layout, Servers | None]]:
        lora.prepare(self.spec.server.adapters, self._model, self._adapters)
        server = self._server()
        # KV blocks on their way between servers belong in memory, not on a disk.
        memory = Path("/dev/shm")
        with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as scratch:
            plan = layout(cell.topology, self._model, server, self.spec.devices, free_port, Path(scratch))
            logs = self.store.raw / "logs" / f"{name}__r{cell.repetition}"
            limit = server.start_seconds
            with (
                Servers(plan.plans, logs, limit, lambda waited: tell(f"{name}: starting", waited, limit))
                if plan.plans
                else nullcontext()
            ) as servers:
                yield plan, servers

    def _measure(self, cell: Cell, plan: Layout, servers: Servers | None, tell: Tell) -> None:
        job = Job(
            workload=cell.workload,
            load=cell.load,
            seed=cell.seed(self.spec),
            model=self.spec.model,
            tokenizer=self._model,
            embed=plan.embed,
            generate=plan.generate,
            prefill=plan.prefill,
            routing=self.spec.routing,
            num_warmups=self.spec.num_warmups,
            drain_seconds=self.spec.drain_seconds,
            extra_body=self.spec.extra_body,
        )
        started = datetime.now(UTC).isoformat(timespec="seconds")
        path = self.store.records_path(cell)
        urls = [*plan.embed, *plan.generate, *plan.prefill]
        running = servers.running if servers else []
        usage, counted = drive(job, path, running, urls, self.spec.devices.kind == "gpu", tell)
        document = {
            "topology": cell.topology.name,
            "workload": cell.workload.name,
            "load": cell.load.label(),
            "repetition": cell.repetition,
            "seed": cell.seed(self.spec),
            "started": started,
            "usage_figures": usage_figures(usage) | counter_figures(counted, usage.seconds),
            "usage": asdict(usage),
            "servers": [{"name": p.name, "command": list(p.command), "env": p.env} for p in plan.plans],
        }
        self.store.save(cell, self.spec, document)


def drive(
    job: Job, records: Path, servers: list[Running], urls: list[str], gpus: bool, tell: Tell
) -> tuple[Usage, Counters | None]:
    """Run one client process to its end, its records in `records`.

    Returns what the servers spent and counted from the window's begin to its end (where a number of requests
    was asked for, to the last answer); None where a server of `urls` counts nothing.

    Raises ClientError when the client fails, ServerError when a server dies.
    """
    window = getattr(job.load, "seconds", None)
    meter = Meter(servers, gpus)
    spent: tuple[Usage, Counters | None] | None = None
    before: Counters | None = None

    def end() -> tuple[Usage, Counters | None]:
        usage, after = meter.end(), counters.read(urls)
        return usage, after.since(before) if after and before else None

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.json"
        path.write_text(job.model_dump_json(), encoding="utf-8")
        client = subprocess.Popen(
            [sys.executable, "-m", "orthrus.bench.driver", str(path), str(records)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert client.stdin is not None
        assert client.stdout is not None
        assert client.stderr is not None
        try:
            tell(f"{job.workload.name}: warming up", 0, 0)
            for line in client.stdout:
                message = json.loads(line)
                if "failed" in message:
                    raise ClientError(message["failed"])
                if "ready" in message:
                    before = counters.read(urls)
                    meter.begin()
                    client.stdin.write("go\n")
                    client.stdin.flush()
                    continue
                for server in servers:
                    server.check()
                seconds = message["seconds"]
                if window and spent is None and seconds >= window and job.workload.type != "phases":
                    spent = end()
                tell(f"{job.workload.name}: {message['done']} done", seconds, window or 0)
            status = client.wait()
            if status:
                raise ClientError(f"the client ended with status {status}:\n{client.stderr.read()[-2000:]}")
            return spent or end()
        finally:
            if client.poll() is None:
                client.kill()
            client.wait()
            for stream in (client.stdin, client.stdout, client.stderr):
                stream.close()


def counter_figures(counted: Counters | None, seconds: float) -> Figures:
    """Flat figures of the engines' own counts; none where there are no counts."""
    if counted is None:
        return {}
    figures = {"steps_per_s": counted.steps / seconds}
    if counted.preemptions is not None:
        figures["preemptions"] = counted.preemptions
    if counted.steps:
        figures["tokens_per_step"] = counted.tokens / counted.steps
    return figures


def usage_figures(usage: Usage) -> Figures:
    """Flat figures of the servers' cost, for the summary; none for servers we did not start."""
    if not usage.servers:
        return {}
    figures = {f"device{use.device}_utilisation": use.utilisation for use in usage.devices}
    figures["device_utilisation"] = sum(figures.values()) / len(figures)
    figures["servers_pss_gib"] = sum(server.cost.pss_bytes for server in usage.servers) / 2**30
    figures["servers_rss_gib"] = sum(server.cost.rss_bytes for server in usage.servers) / 2**30
    figures["engine_cpu_seconds"] = sum(server.cost.engine_seconds for server in usage.servers)
    # More than engines, front ends and client explain was spent by strangers: such a run proves little.
    figures["machine_busy_cores"] = sum(usage.core_busy.values())
    figures["server_busy_cores"] = sum(
        server.cost.engine_seconds + server.cost.frontend_seconds for server in usage.servers
    ) / max(usage.seconds, 1e-9)
    figures["frontend_cpu_seconds"] = sum(server.cost.frontend_seconds for server in usage.servers)
    return figures
