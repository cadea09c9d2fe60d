"""The client process: drives one workload under one load, in a process of its own, and writes records.

`python -m orthrus.bench.driver JOB.json OUT.jsonl`, where JOB.json is a `Job`. It tells its state on standard
output, a JSON object a line: {"ready": true} after the warm-up, then {"done": n, "errors": n, "seconds": t}
four times a second. It starts to measure when a line arrives on its standard input, so that the parent can
take readings first.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import resource
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from orthrus.bench import workload as loads
from orthrus.bench.arrivals import arrival_times
from orthrus.bench.client import Client, Targets
from orthrus.bench.records import ClientRun, Record, write_run
from orthrus.bench.shapes import AnyWorkload, Mix, Phases, Strict
from orthrus.bench.spec import AnyLoad, Closed, Open
from orthrus.bench.workload import Unit

WARM_UP_SEED = 1_000_000_007


class Job(Strict):
    """Everything the client process must know."""

    workload: AnyWorkload
    load: AnyLoad
    seed: int
    model: str
    tokenizer: str
    embed: list[str]
    generate: list[str]
    prefill: list[str] = Field(default_factory=list)
    routing: str
    num_warmups: int
    drain_seconds: float
    extra_body: dict[str, Any] | None = None


class Driver:
    """Runs a job's phases one after another and collects their records."""

    def __init__(self, job: Job, client: Client) -> None:
        self._job = job
        self._client = client
        self._origin = 0.0
        self.records: list[Record] = []
        self.windows: list[tuple[float, float]] = []

    def now(self) -> float:
        """Seconds since the window began."""
        return time.monotonic() - self._origin

    async def warm_up(self) -> None:
        """Send `num_warmups` units, a few at a time, and drop their records.

        RuntimeError when one fails: a benchmark of refusals is none.
        """
        units = self._units(0, self._job.seed + WARM_UP_SEED)
        gate = asyncio.Semaphore(8)

        async def one(unit: Unit) -> None:
            async with gate:
                for request in unit:
                    record = await self._client.send(request, 0.0, time.monotonic(), [])
                    if record.error:
                        raise RuntimeError(f"a warm-up {request.kind} request failed: {record.error}")

        await asyncio.gather(*(one(unit) for unit in itertools.islice(units, self._job.num_warmups)))

    async def run(self) -> None:
        """Drive every phase; fills in `records` and `windows` (begin and end of each phase)."""
        self._origin = time.monotonic()
        phases = len(self._job.workload.embed_shares) if isinstance(self._job.workload, Phases) else 1
        for phase in range(phases):
            begin = self.now()
            if isinstance(self._job.load, Closed):
                await self._closed(self._job.load, phase, begin)
            else:
                await self._open(phase, begin)
            seconds = getattr(self._job.load, "seconds", None)
            ends = [record.end for record in self.records if record.phase == phase and record.end is not None]
            # A timed window is as long as it was asked for; a counted one ends with its last request.
            self.windows.append((begin, begin + seconds if seconds else max(ends, default=begin)))

    def _units(self, phase: int, seed: int) -> Iterator[Unit]:
        return loads.units(self._job.workload, seed, self._job.tokenizer, phase)

    async def _closed(self, load: Closed, phase: int, begin: float) -> None:
        deadline = begin + load.seconds if load.seconds else None
        shared = self._units(phase, self._job.seed)
        if load.num_prompts:
            shared = itertools.islice(shared, load.num_prompts)
        sources = [shared] * load.max_concurrency
        if load.split == "clients":
            sources = self._sources_by_kind(load, phase)

        async def client(source: Iterator[Unit]) -> None:
            while deadline is None or self.now() < deadline:
                unit = next(source, None)
                if unit is None:
                    return
                await self._send_unit(unit, self.now(), deadline)

        await self._drained([asyncio.ensure_future(client(source)) for source in sources], deadline)

    def _sources_by_kind(self, load: Closed, phase: int) -> list[Iterator[Unit]]:
        workload = self._job.workload
        assert isinstance(workload, Mix | Phases)
        share = workload.embed_share if isinstance(workload, Mix) else workload.embed_shares[phase]
        embedding = loads.embed_clients(share, load.max_concurrency)
        counts: dict[loads.Kind, int] = {"embed": embedding, "generate": load.max_concurrency - embedding}
        sources: list[Iterator[Unit]] = []
        for kind, count in counts.items():
            source = loads.units_of_kind(workload, self._job.seed, self._job.tokenizer, kind, phase)
            if load.num_prompts:
                wanted = round(load.num_prompts * count / load.max_concurrency)
                source = itertools.islice(source, wanted)
            sources += [source] * count
        return sources

    async def _open(self, phase: int, begin: float) -> None:
        load = self._job.load
        source = self._units(phase, self._job.seed)
        gate = asyncio.Semaphore(load.max_concurrency) if load.max_concurrency else contextlib.nullcontext()
        times: Iterator[float] | None = None
        deadline = None
        if isinstance(load, Open):
            times = iter(
                arrival_times(
                    load.request_rate, load.burstiness, self._job.seed + phase, load.seconds, load.num_prompts
                )
            )
            deadline = begin + load.seconds if load.seconds else None
        tasks: list[asyncio.Task[None]] = []

        async def gated(unit: Unit, due: float) -> None:
            async with gate:
                await self._send_unit(unit, due, deadline)

        async for unit, due in self._due(source, times, begin):
            tasks.append(asyncio.ensure_future(gated(unit, due)))
        await self._drained(tasks, deadline)

    async def _due(
        self, source: Iterator[Unit], times: Iterator[float] | None, begin: float
    ) -> AsyncIterator[tuple[Unit, float]]:
        """Each unit at its time: of `times`, or its own in a trace."""
        for unit in source:
            at = unit[0].at if times is None else next(times, None)
            if at is None:
                return
            due = begin + at
            await asyncio.sleep(max(due - self.now(), 0.0))
            yield unit, due

    async def _send_unit(self, unit: Unit, due: float, deadline: float | None) -> None:
        for request in unit:
            if request.pause:
                await asyncio.sleep(request.pause)
                due = self.now()
            if deadline is not None and self.now() >= deadline and request is not unit[0]:
                return
            record = await self._client.send(request, due, self._origin, self.records)
            due = self.now()
            if record.error:
                # A refused client comes back at once; without this a closed loop would spin.
                await asyncio.sleep(0.05)
                return

    async def _drained(self, tasks: list[asyncio.Task[None]], deadline: float | None) -> None:
        """Wait for the clients; after a timed window, no longer than the drain time, then cancel."""
        if not tasks:
            return
        timeout = None if deadline is None else deadline - self.now() + self._job.drain_seconds
        done, late = await asyncio.wait(tasks, timeout=timeout)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        for task in done:
            task.result()


async def measure(job: Job) -> ClientRun:
    """Warm up, wait for the parent's word, measure."""
    targets = Targets(job.embed, job.generate, job.prefill, job.routing)
    client = Client(targets, job.model, extra_body=job.extra_body)
    driver = Driver(job, client)
    try:
        await driver.warm_up()
        _say({"ready": True})
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        before = resource.getrusage(resource.RUSAGE_SELF)
        teller = asyncio.ensure_future(_tell(driver))
        try:
            await driver.run()
        finally:
            teller.cancel()
        after = resource.getrusage(resource.RUSAGE_SELF)
    finally:
        await client.aclose()
    lateness = [record.start - record.due for record in driver.records]
    return ClientRun(
        windows=driver.windows,
        cpu_seconds=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        late_p99=float(np.percentile(lateness, 99)) if lateness else 0.0,
        records=driver.records,
    )


async def _tell(driver: Driver) -> None:
    while True:
        await asyncio.sleep(0.25)
        errors = sum(bool(record.error) for record in driver.records)
        _say({"done": len(driver.records), "errors": errors, "seconds": driver.now()})


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main(argv: list[str]) -> int:
    """Run the job of the file argv[0] and write its records to argv[1]."""
    job = Job.model_validate_json(Path(argv[0]).read_text(encoding="utf-8"))
    try:
        run = asyncio.run(measure(job))
    except RuntimeError as error:
        _say({"failed": str(error)})
        return 1
    write_run(Path(argv[1]), run)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
