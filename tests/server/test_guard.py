"""The middleware in front of every route, over a small application."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from orthrus.server.errors import error_body
from orthrus.server.guard import Guard

KEY = {"Authorization": "Bearer right"}


def application(keys=("right", "also right"), max_requests=2, reason=lambda: None, gate=None):
    async def work(request: Request) -> PlainTextResponse:
        if gate is not None:
            await gate.wait()
        return PlainTextResponse(str(len(await request.body())))

    routes = [Route(path, work, methods=["GET", "POST", "PUT"]) for path in ("/work", "/health", "/metrics")]
    return Guard(Starlette(routes=routes), keys, 100, max_requests, reason)


async def send(app, method="POST", path="/work", **kwargs):
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.request(method, path, **kwargs)


@pytest.mark.parametrize(
    "path", ["/work", "//work", "/w%6Frk", "/work/", "/none", "/health/", "/HEALTH", "/metrics/x"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "HEAD", "PATCH", "TRACE"])
async def test_every_path_and_method_needs_a_key(path, method):
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic right"}):
        assert (await send(application(), method, path, headers=headers)).status_code == 401


async def test_public_paths_need_none_and_any_of_several_keys_fits():
    assert (await send(application(), "GET", "/health")).status_code == 200
    assert (await send(application(), "GET", "/metrics")).status_code == 200
    for key in ("Bearer right", "bearer also right", "BEARER right"):
        assert (await send(application(), headers={"Authorization": key})).status_code == 200
    assert (await send(application(keys=()))).status_code == 200


async def test_the_size_limit_by_header_and_by_what_arrives():
    async def pieces(count):
        for _ in range(count):
            yield b"x" * 10

    assert (await send(application(), headers=KEY, content=b"x" * 100)).text == "100"
    refused = await send(application(), headers=KEY, content=b"x" * 101)
    assert refused.status_code == 413
    assert refused.json()["error"]["message"] == "the request body has 101 bytes; at most 100 are allowed"
    assert (await send(application(), headers=KEY, content=pieces(10))).text == "100"
    assert (await send(application(), headers=KEY, content=pieces(11))).status_code == 413


async def test_overload_is_429_until_a_request_ends():
    gate = asyncio.Event()
    app = application(gate=gate)
    open_requests = [asyncio.create_task(send(app, headers=KEY)) for _ in range(2)]
    await asyncio.sleep(0.05)
    refused = await send(app, headers=KEY)
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    assert refused.json()["error"]["type"] == "Too Many Requests"
    gate.set()
    assert [response.status_code for response in await asyncio.gather(*open_requests)] == [200, 200]
    assert (await send(app, headers=KEY)).status_code == 200


async def test_a_status_has_the_type_that_vllm_gives_it():
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
    from vllm.exceptions import GracefulHTTPError

    for status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        theirs = create_error_response(GracefulHTTPError("why", status)).model_dump()
        assert error_body("why", status) == theirs


async def test_a_request_that_fails_or_is_cancelled_gives_its_place_back():
    gate = asyncio.Event()
    app = application(gate=gate, max_requests=1)
    task = asyncio.create_task(send(app, headers=KEY))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gate.set()
    assert (await send(app, headers=KEY)).status_code == 200


async def test_a_server_that_ends_says_so_but_stays_observable():
    app = application(reason=lambda: "the server is stopping")
    refused = await send(app, headers=KEY)
    assert refused.status_code == 503
    assert refused.json()["error"]["message"] == "the server is stopping"
    assert refused.json()["error"]["type"] == "Service Unavailable"
    assert refused.headers["connection"] == "close"
    assert (await send(app, "GET", "/health")).status_code == 200


@pytest.mark.parametrize(
    ("reason", "is_answered"), [("it is stopping", False), ("it is stopping", True), (None, False)]
)
async def test_a_request_that_fails_because_the_server_ends_is_503(reason, is_answered):
    reasons = iter([None, reason])

    async def fail(_scope, _receive, send):
        if is_answered:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("cannot schedule new futures after shutdown")

    app = Guard(fail, (), 100, 2, lambda: next(reasons))
    if reason is None or is_answered:
        with pytest.raises(RuntimeError, match="cannot schedule"):
            await send(app)
        return
    refused = await send(app)
    assert (refused.status_code, refused.json()["error"]["message"]) == (503, reason)
    assert refused.headers["connection"] == "close"
