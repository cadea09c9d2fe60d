"""The adapter's HTTP side: the part of OpenAI's API that a mixed benchmark needs, on starlette."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol, TypeVar
from uuid import uuid4

import numpy as np
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from orthrus.bench.peers.openvino.bodies import Body, Completion, Embedding
from orthrus.bench.peers.openvino.generator import Generation

B = TypeVar("B", bound=Body)


class Embeds(Protocol):
    """`submit` gives a concurrent future of vectors [n, d]."""

    def submit(self, batch: Sequence[Sequence[int]]) -> Any: ...


class Generates(Protocol):
    """`submit` starts a generation; `cancel` ends it, if it has not ended."""

    def submit(self, generation: Generation) -> None: ...
    def cancel(self, generation: Generation) -> None: ...


class Codes(Protocol):
    """Text to ids; `stream()` decodes one generation."""

    vocabulary: int

    def encode(self, text: str) -> list[int]: ...
    def stream(self) -> Any: ...


class RefusedError(Exception):
    """A request that cannot be served: HTTP status and the message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Api:
    """The routes over one embedder, one generator and their tokenizer."""

    def __init__(self, name: str, embedder: Embeds, generator: Generates, text: Codes) -> None:
        """`name` is the model's served name."""
        self._name = name
        self._embedder = embedder
        self._generator = generator
        self._text = text

    def app(self) -> Starlette:
        """The application."""
        return Starlette(
            routes=[
                Route("/health", self._health),
                Route("/v1/models", self._models),
                Route("/v1/completions", self._completions, methods=["POST"]),
                Route("/v1/embeddings", self._embeddings, methods=["POST"]),
            ],
            exception_handlers={RefusedError: _refusal},
        )

    async def _health(self, _: Request) -> Response:
        return Response()

    async def _models(self, _: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": self._name, "object": "model"}]})

    async def _embeddings(self, request: Request) -> Response:
        body = await self._read(request, Embedding)
        batch = [self._ids(item) for item in body.inputs()]
        try:
            vectors = await asyncio.wrap_future(self._embedder.submit(batch))
        except RuntimeError as error:
            raise RefusedError(500, str(error)) from error
        encode = _base64 if body.encoding_format == "base64" else _floats
        data = [
            {"object": "embedding", "index": index, "embedding": encode(vector)}
            for index, vector in enumerate(vectors)
        ]
        tokens = sum(map(len, batch))
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return JSONResponse({"object": "list", "model": self._name, "data": data, "usage": usage})

    async def _completions(self, request: Request) -> Response:
        body = await self._read(request, Completion)
        ids = self._ids(body.prompt)
        if body.stream:
            usage = body.stream_options is not None and body.stream_options.include_usage
            events = self._events(ids, body.settings(), usage)
            return StreamingResponse(events, media_type="text/event-stream")
        decode, count = self._text.stream(), 0
        parts: list[str] = []
        try:
            async for new in self._tokens(ids, body.settings()):
                parts.append(decode.write(new))
                count += len(new)
        except RuntimeError as error:
            raise RefusedError(500, str(error)) from error
        parts.append(decode.end())
        return JSONResponse(self._chunk("".join(parts), _reason(count, body.max_tokens), len(ids), count))

    async def _events(self, ids: list[int], settings: dict[str, Any], usage: bool) -> AsyncIterator[str]:
        """Server-sent events: a chunk for each token, one with the reason for the end, usage, [DONE]."""
        decode, count = self._text.stream(), 0
        try:
            async for new in self._tokens(ids, settings):
                for token in new:
                    count += 1
                    yield _event(self._chunk(decode.write([token])))
        except RuntimeError as error:
            yield _event({"error": {"message": str(error), "code": 500}})
            return
        rest = decode.end()
        yield _event(self._chunk(rest, _reason(count, settings["max_new_tokens"])))
        if usage:
            yield _event({**self._chunk("", None, len(ids), count), "choices": []})
        yield "data: [DONE]\n\n"

    async def _tokens(self, ids: list[int], settings: dict[str, Any]) -> AsyncIterator[list[int]]:
        """New token ids as they come. Leaving early, as when the client has gone, cancels the generation."""
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[list[int] | Exception | None] = asyncio.Queue()

        def tell(news: list[int] | Exception | None) -> None:
            loop.call_soon_threadsafe(arrived.put_nowait, news)

        generation = Generation(ids, settings, tell)
        self._generator.submit(generation)
        try:
            while (news := await arrived.get()) is not None:
                if isinstance(news, Exception):
                    raise RuntimeError(str(news)) from news
                yield news
        finally:
            self._generator.cancel(generation)

    async def _read(self, request: Request, kind: type[B]) -> B:
        try:
            body = kind.model_validate_json(await request.body())
        except ValidationError as error:
            lines = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
            raise RefusedError(400, "; ".join(lines)) from error
        if body.model != self._name:
            raise RefusedError(404, f"no model {body.model!r}; served: {self._name!r}")
        return body

    def _ids(self, prompt: str | list[int]) -> list[int]:
        ids = self._text.encode(prompt) if isinstance(prompt, str) else prompt
        if max(ids) >= self._text.vocabulary:
            raise RefusedError(400, f"token id {max(ids)}: the vocabulary has {self._text.vocabulary}")
        return ids

    def _chunk(
        self, text: str, reason: str | None = None, tokens_in: int = 0, tokens_out: int = 0
    ) -> dict[str, Any]:
        document: dict[str, Any] = {
            "id": f"cmpl-{uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": self._name,
            "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": reason}],
        }
        if tokens_in:
            total = tokens_in + tokens_out
            document["usage"] = {
                "prompt_tokens": tokens_in,
                "completion_tokens": tokens_out,
                "total_tokens": total,
            }
        return document


async def _refusal(_: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    return JSONResponse({"error": {"message": str(error), "code": error.status}}, error.status)


def _event(document: dict[str, Any]) -> str:
    return f"data: {json.dumps(document)}\n\n"


def _reason(count: int, limit: int) -> str:
    return "length" if count >= limit else "stop"


def _floats(vector: Any) -> list[float]:
    values: list[float] = vector.tolist()
    return values


def _base64(vector: Any) -> str:
    return base64.b64encode(np.asarray(vector, dtype="<f4").tobytes()).decode()
