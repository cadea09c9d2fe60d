"""A fake OpenAI-compatible server for the client's tests; no model. `python bench_fake_server.py PORT`.

The first prompt token chooses what happens: 2000 plain answer, 2001 HTTP 429 with Retry-After, 2002 the
stream breaks off after two tokens, 2003 an error within the stream, 2004 a stream without [DONE], 2005 it
hangs after one token, 2006 no vector in the answer, else plain.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

seen: list[dict[str, object]] = []


async def health(_: Request) -> Response:
    return Response()


async def requests_seen(_: Request) -> Response:
    return JSONResponse(seen)


def port_of(request: Request) -> int | None:
    """Tells one connection from another."""
    return request.client.port if request.client else None


def refusal() -> Response:
    return JSONResponse({"error": {"message": "queue full"}}, 429, {"retry-after": "7"})


async def embeddings(request: Request) -> Response:
    body = await request.json()
    seen.append({"path": "embeddings", "client_port": port_of(request), **body})
    ids = body["input"]
    if ids[0] == 2001:
        return refusal()
    if ids[0] == 2006:
        return JSONResponse({"data": [], "usage": {"prompt_tokens": len(ids)}})
    vector = base64.b64encode(bytes(8)).decode()
    return JSONResponse({"data": [{"embedding": vector}], "usage": {"prompt_tokens": len(ids)}})


async def completions(request: Request) -> Response:
    body = await request.json()
    seen.append({"path": "completions", "key": request.headers.get("authorization"), **body})
    case = body["prompt"][0]
    if case == 2001:
        return refusal()
    if not body.get("stream"):
        return JSONResponse({"choices": [{"text": "x"}]})
    return StreamingResponse(stream(case, body), media_type="text/event-stream")


async def stream(case: int, body: dict[str, object]) -> AsyncIterator[str]:
    tokens = int(str(body["max_tokens"]))
    for index in range(tokens):
        if case == 2002 and index == 2:
            raise ConnectionError("the fake breaks off here")
        if case == 2003 and index == 1:
            yield 'data: {"error": {"message": "engine died"}}\n\n'
            return
        if case == 2005 and index == 1:
            await asyncio.sleep(3600)
        yield f"data: {json.dumps({'choices': [{'text': 'x'}]})}\n\n"
        await asyncio.sleep(0.01)
    usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": tokens}  # type: ignore[arg-type]
    yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n"
    if case != 2004:
        yield "data: [DONE]\n\n"


app = Starlette(
    routes=[
        Route("/health", health),
        Route("/seen", requests_seen),
        Route("/v1/embeddings", embeddings, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
    ]
)

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="critical")
