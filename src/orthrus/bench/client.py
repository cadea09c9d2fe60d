"""One request over HTTP to an OpenAI-compatible server, timed token by token."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from orthrus.bench.records import Record
from orthrus.bench.workload import Request

KEEP_ALIVE_S = 2.0
"""An idle connection is used again for this long, well below the five seconds after which vLLM closes it."""

CUT = "cut: the window's drain time was over"


@dataclass
class Targets:
    """Base URLs (without /v1) by role, and how a request chooses among them.

    With `prefill` URLs a generation first sends its prompt there for one token, so that the prefill's KV
    blocks reach the decoding server through their connector (vLLM's disaggregated prefill).
    """

    embed: Sequence[str]
    generate: Sequence[str]
    prefill: Sequence[str] = ()
    routing: str = "least-outstanding"
    _open: dict[str, int] = field(default_factory=dict)
    _turn: dict[str, int] = field(default_factory=dict)

    def take(self, role: str) -> str:
        """Choose a URL of a role: in turn, or the one with the fewest of our requests open (ties in turn)."""
        urls: Sequence[str] = getattr(self, role)
        turn = self._turn[role] = self._turn.get(role, -1) + 1
        ordered = [urls[(turn + i) % len(urls)] for i in range(len(urls))]
        chosen = ordered[0]
        if self.routing == "least-outstanding":
            chosen = min(ordered, key=lambda url: self._open.get(url, 0))
        self._open[chosen] = self._open.get(chosen, 0) + 1
        return chosen

    def give(self, url: str) -> None:
        """Say that a request to `url` has ended."""
        self._open[url] -= 1


class Client:
    """Sends requests and fills in their records; never retries, since a retry would hide a refusal."""

    def __init__(
        self,
        targets: Targets,
        model: str,
        clock: Callable[[], float] = time.monotonic,
        timeout: float = 600.0,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        """`extra_body` is added to generations; the default makes outputs greedy and exact in length.

        The environment's OPENAI_API_KEY goes with every request, as in `vllm bench serve`.
        """
        self._targets = targets
        self._model = model
        self._clock = clock
        self._extra = {"temperature": 0, "ignore_eos": True} if extra_body is None else dict(extra_body)
        limits = httpx.Limits(
            max_connections=None, max_keepalive_connections=None, keepalive_expiry=KEEP_ALIVE_S
        )
        key = os.environ.get("OPENAI_API_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.AsyncClient(timeout=timeout, limits=limits, headers=headers, trust_env=False)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def send(self, request: Request, due: float, origin: float, records: list[Record]) -> Record:
        """Send one request and wait for its end. `due` and all times in the record count from `origin`.

        Its record is in `records` from the start on, so that a cancelled one is there too. Every failure of
        server or network ends up in the record and is not raised.
        """
        url = self._targets.take(request.kind)
        record = Record(
            id=request.id,
            kind=request.kind,
            due=due,
            start=self._clock() - origin,
            server=url,
            phase=request.phase,
            session=request.session,
            adapter=request.adapter,
            tokens_in=len(request.prompt),
        )
        records.append(record)
        try:
            if request.kind == "embed":
                await self._embed(request, record, url, origin)
            else:
                await self._generate(request, record, url, origin)
        except httpx.HTTPError as error:
            record.error = f"{type(error).__name__}: {error}"
        except AnswerError as error:
            record.error = str(error)
        except asyncio.CancelledError:
            record.error = CUT
            raise
        finally:
            self._targets.give(url)
            if record.end is None:
                record.end = self._clock() - origin
        return record

    async def _embed(self, request: Request, record: Record, url: str, origin: float) -> None:
        body = {
            "model": request.adapter or self._model,
            "input": list(request.prompt),
            "encoding_format": "base64",  # what the official client asks for
        }
        answer = await self._http.post(f"{url}/v1/embeddings", json=body)
        record.end = record.first = self._clock() - origin
        record.status = answer.status_code
        if answer.status_code != httpx.codes.OK:
            raise AnswerError(_refusal(answer.status_code, answer.headers, answer.text))
        document = _json(answer.text)
        if not document.get("data"):
            raise AnswerError(f"no vector in the answer: {answer.text[:200]}")
        record.tokens_in = int((document.get("usage") or {}).get("prompt_tokens", 0))

    async def _generate(self, request: Request, record: Record, url: str, origin: float) -> None:
        body: dict[str, Any] = {
            "model": request.adapter or self._model,
            "prompt": list(request.prompt),
            **self._extra,
        }
        if self._targets.prefill:
            await self._prefill(body)
        body |= {
            "max_tokens": request.output_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        finished = False
        async with self._http.stream("POST", f"{url}/v1/completions", json=body) as answer:
            record.status = answer.status_code
            if answer.status_code != httpx.codes.OK:
                text = (await answer.aread()).decode(errors="replace")
                raise AnswerError(_refusal(answer.status_code, answer.headers, text))
            async for line in answer.aiter_lines():
                if not line.startswith("data:"):
                    continue
                payload = line[5:].strip()
                if payload == "[DONE]":
                    finished = True
                    break
                self._chunk(_json(payload), record, self._clock() - origin)
        record.end = self._clock() - origin
        if not finished:
            raise AnswerError("the stream ended before [DONE]")
        if not record.tokens:
            raise AnswerError("the stream held no token")
        record.tokens_out = record.tokens_out or len(record.tokens)

    async def _prefill(self, body: Mapping[str, Any]) -> None:
        url = self._targets.take("prefill")
        try:
            answer = await self._http.post(f"{url}/v1/completions", json={**body, "max_tokens": 1})
        finally:
            self._targets.give(url)
        if answer.status_code != httpx.codes.OK:
            raise AnswerError("prefill: " + _refusal(answer.status_code, answer.headers, answer.text))

    @staticmethod
    def _chunk(document: dict[str, Any], record: Record, now: float) -> None:
        if "error" in document:
            raise AnswerError(f"error in the stream: {json.dumps(document['error'])[:200]}")
        if document.get("choices"):
            if record.first is None:
                record.first = now
            record.tokens.append(now)
        usage = document.get("usage")
        if usage:
            record.tokens_in = int(usage.get("prompt_tokens", 0))
            record.tokens_out = int(usage.get("completion_tokens", 0))


class AnswerError(Exception):
    """The server answered something other than what was asked for."""


def _refusal(status: int, headers: httpx.Headers, text: str) -> str:
    after = headers.get("retry-after")
    wait = f" (Retry-After: {after})" if after else ""
    return f"HTTP {status}{wait}: {text[:200]}"


def _json(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise AnswerError(f"not JSON: {text[:200]}") from error
    if not isinstance(document, dict):
        raise AnswerError(f"not a JSON object: {text[:200]}")
    return document
