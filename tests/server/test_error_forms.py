"""Errors in OpenAI's form, over a small application with vLLM's own error handlers and our guard."""

from __future__ import annotations

import json
from argparse import Namespace
from types import SimpleNamespace
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Body, FastAPI, Request
from pydantic import TypeAdapter
from small_limits import LIMITS

from orthrus.engine.compat import GenerationError, VLLMValidationError
from orthrus.server.errors import RequestError
from orthrus.server.guard import Guard
from orthrus.server.handlers import install
from orthrus.server.lengths import is_too_long, name_inputs, name_prompts
from orthrus.server.routes import check_first

JSON = {"content-type": "application/json"}
MODELS = SimpleNamespace(
    is_base_model=lambda name: name == "m" * 300,
    lora_requests={"l" * 300: None},
    base_model_paths=[SimpleNamespace(name="served")],
)


def application() -> FastAPI:
    from vllm.entrypoints.serve.exception_handling.register import init_exception_handler
    from vllm.exceptions import VLLMNotFoundError

    app = FastAPI()
    app.state.args = Namespace(log_error_stack=False)
    app.state.orthrus_limits, app.state.openai_serving_models = LIMITS, MODELS

    @app.post("/parsed")
    async def parsed(request: Annotated[dict[str, Any], Body()]) -> dict[str, Any]:
        if "fail" in request:
            raise GenerationError
        if "late" in request:
            TypeAdapter(list[int]).validate_python(request["late"])
        if "unknown" in request:
            raise VLLMNotFoundError("The model `x` does not exist.")
        return {"given": len(json.dumps(request))}

    @app.post("/raw")
    async def raw(request: Request) -> Any:
        return len(await request.json())

    @app.get("/asked")
    async def asked(number: int) -> int:
        return number

    init_exception_handler(app)
    app.add_middleware(Guard, keys=(), max_body_bytes=1000, max_requests=9, unavailable=lambda: None)
    others = [route for route in app.routes if route.path == "/asked"]
    stock = len(app.routes)
    check_first(app)
    app.router.routes[:] = [*others, *app.routes[stock:]]  # a plugin's route replaces its own
    install(app, SimpleNamespace(errored=False), app.state.args)
    return app


async def send(path: str, method: str = "POST", **given: Any) -> httpx.Response:
    transport = httpx.ASGITransport(application(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        return await client.request(method, path, **{"headers": JSON, **given})


async def error_of(status: int, path: str, method: str = "POST", **given: Any) -> dict[str, Any]:
    response = await send(path, method, **given)
    assert response.status_code == status, response.text
    assert list(response.json()) == ["error"]
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    return error


@pytest.mark.parametrize("path", ["/parsed", "/raw"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a":', "the request body is not JSON: Expecting value"),
        (b'{"a":"\xff"}', "the request body is not JSON: 'utf-8' codec"),
        (b"1" * 900 + b"[", "the request body is not JSON: Extra data"),
        (b"[1]", "the request body must be a JSON object"),
        (b"null", "the request body must be a JSON object"),
    ],
)
async def test_a_body_that_is_no_json_object(path: str, content: bytes, message: str) -> None:
    error = await error_of(400, path, content=content)
    assert error["message"].startswith(message)
    assert error["param"] == "body"


@pytest.mark.parametrize("path", ["/parsed", "/raw"])
async def test_a_body_nested_too_deep(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_deep(*_args: Any, **_named: Any) -> Any:
        raise RecursionError

    monkeypatch.setattr("json.loads", too_deep)
    transport = httpx.ASGITransport(application(), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        response = await client.post(path, content=b"[" * 500, headers=JSON)
    monkeypatch.undo()
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "body"
    assert "nested too deep" in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/parsed", "/raw"])
async def test_a_body_that_grows_too_large_as_it_arrives(path: str) -> None:
    async def pieces() -> Any:
        for _ in range(11):
            yield b" " * 100

    error = await error_of(413, path, content=pieces())
    assert error["message"] == "the request body has 1100 bytes; at most 1000 are allowed"


async def test_unknown_paths_and_methods() -> None:
    error = await error_of(404, "/nothing/" + "x" * 500)
    assert error["message"].startswith("there is no route /nothing/xxx")
    assert len(error["message"]) < 100
    response = await send("/raw", "GET")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    assert response.json()["error"]["message"] == "/raw takes POST, not GET"


async def test_a_query_parameter_is_named() -> None:
    error = await error_of(400, "/asked?number=x", "GET")
    assert error["param"] == "number"
    assert error["message"].startswith("number is 'x'; allowed: a valid integer")
    assert (await error_of(400, "/asked", "GET"))["param"] == "number"


@pytest.mark.parametrize("path", ["/parsed", "/raw"])
async def test_the_checks_come_before_every_route(path: str) -> None:
    assert (await send(path, json={"stop": "é"})).status_code == 200
    error = await error_of(400, path, content=b'{"stop":["\\ud800"]}')
    assert error["param"] == "stop[0]"
    assert error["type"] == "BadRequestError"
    assert (await error_of(400, path, content=b'{"top_k":1e30}'))["param"] == "top_k"
    assert (await error_of(400, path, json={"messages": []}))["param"] == "messages"


async def test_a_long_model_name_is_shortened_unless_it_is_served() -> None:
    error = await error_of(404, "/parsed", json={"model": "x" * 900})
    assert (error["param"], error["type"]) == ("model", "NotFoundError")
    assert len(error["message"]) < 300
    assert "900 characters" in error["message"]
    for name in ("m" * 300, "l" * 300, "short"):
        assert (await send("/parsed", json={"model": name})).status_code == 200


async def test_an_unknown_model_is_named_with_the_field_and_the_served_ones() -> None:
    error = await error_of(404, "/parsed", json={"unknown": 1})
    assert error["message"] == "The model `x` does not exist. Valid aliases: served."
    assert (error["param"], error["type"]) == ("model", "NotFoundError")


async def test_what_pydantic_finds_late_is_one_sentence() -> None:
    error = await error_of(400, "/parsed", json={"late": [1, "x"]})
    assert error["message"].startswith("Input should be a valid integer")
    assert "\n" not in error["message"]
    assert error["type"] == "BadRequestError"


async def test_a_generation_that_the_engine_fails_is_the_grammars_fault_only_where_there_is_one() -> None:
    assert (await error_of(500, "/parsed", json={"fail": 1}))["param"] is None
    error = await error_of(400, "/parsed", json={"fail": 1, "structured_outputs": {"regex": "a"}})
    assert error["param"] == "structured_outputs"
    assert "no text fits it" in error["message"]


def overlong(count: int, parameter: str = "input_tokens") -> VLLMValidationError:
    return VLLMValidationError("too long", parameter=parameter, value=count)


@pytest.mark.parametrize(
    ("given", "bad", "where"),
    [(["a", "b", "c"], 2, "input[2]"), ([[1], [2]], 1, "input[1]"), ("a", 0, "input"), ([1, 2], 0, "input")],
)
async def test_the_input_that_is_too_long_is_named(given: Any, bad: int, where: str) -> None:
    count = len(given) if isinstance(given, list) and not isinstance(given[0], int) else 1

    async def render(request: Any) -> Any:
        assert set(request) == {"i"}
        if request["i"] == bad:
            raise overlong(17)
        return request

    processor = SimpleNamespace(
        get_request_factory_online=lambda _ctx: [{"i": i} for i in range(count)], render_async=render
    )
    name_inputs(processor, 16)
    ctx = SimpleNamespace(request=SimpleNamespace(input=given))
    for i, request in enumerate(processor.get_request_factory_online(ctx)):
        if i != bad:
            assert await processor.render_async(request) == {"i": i}
            continue
        with pytest.raises(ValueError, match="this model takes") as caught:
            await processor.render_async(request)
        assert str(caught.value).startswith(f"{where} has 17 or more tokens; this model takes at most 16 (")
        assert "truncate_prompt_tokens" in str(caught.value)
        assert "long_input" in str(caught.value)
        assert caught.value.param == "input"  # type: ignore[attr-defined]


@pytest.mark.parametrize("given", [{"texts": ["a"]}, {"inputs": [{"content": []}]}])
async def test_a_text_in_coheres_form_that_is_too_long_is_named(given: dict[str, Any]) -> None:
    async def render(_request: Any) -> Any:
        raise overlong(17)

    processor = SimpleNamespace(get_request_factory_online=lambda _ctx: [{}], render_async=render)
    name_inputs(processor, 16)
    [request] = processor.get_request_factory_online(SimpleNamespace(request=SimpleNamespace(**given)))
    with pytest.raises(ValueError, match="this model takes at most 16 ") as caught:
        await processor.render_async(request)
    [field] = given
    assert str(caught.value).startswith(f"{field}[0] has 17 or more tokens")
    assert "truncate 'START' or 'END'" in str(caught.value)
    assert caught.value.param == field  # type: ignore[attr-defined]


async def test_the_prompt_that_is_too_long_is_named() -> None:
    async def preprocess(request: Any, prompts: Any, *, skip_mm_cache: bool) -> Any:
        assert skip_mm_cache
        if "long" in prompts:
            raise overlong(99, "input_text")
        return [{"prompt": f"{request} {prompt}"} for prompt in prompts]

    renderer = SimpleNamespace(preprocess_cmpl=preprocess)
    name_prompts(renderer, 16)
    rendered = await renderer.preprocess_cmpl("r", ["a", "b"], skip_mm_cache=True)
    assert rendered == [{"prompt": "r a"}, {"prompt": "r b"}]
    for prompts, where in ((["a", "long"], "prompt[1]"), (["long"], "prompt")):
        with pytest.raises(ValueError, match="99 characters; this model takes at most 16 tokens") as caught:
            await renderer.preprocess_cmpl("r", prompts, skip_mm_cache=True)
        assert str(caught.value).startswith(f"{where} has ")
        assert caught.value.param == "prompt"  # type: ignore[attr-defined]
    assert not is_too_long(VLLMValidationError("other", parameter="stop"))


async def test_a_prompt_without_tokens_is_named() -> None:
    async def preprocess(_request: Any, prompts: Any) -> Any:
        return [{"prompt_token_ids": [len(prompt)] * bool(prompt)} for prompt in prompts]

    renderer = SimpleNamespace(preprocess_cmpl=preprocess)
    name_prompts(renderer, 16)
    assert len(await renderer.preprocess_cmpl("r", ["a", "b"])) == 2
    for prompts, where in ((["a", ""], "prompt[1]"), ([""], "prompt")):
        with pytest.raises(RequestError, match="no tokens") as caught:
            await renderer.preprocess_cmpl("r", prompts)
        assert str(caught.value).startswith(f"{where} has no tokens")
        assert caught.value.param == where
