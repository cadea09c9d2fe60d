"""`orthrus.Engine` on a real engine in a process of its own: sync, async, threads, streams, errors, close."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_driver import generate, pooled, reference_hidden_states, tokens
from vllm import PoolingParams, SamplingParams
from vllm.lora.request import LoRARequest

from orthrus import Engine
from orthrus.engine.background import EngineClosedError

pytestmark = pytest.mark.engine

SMALL: dict[str, Any] = {
    "enforce_eager": True,
    "dtype": "float32",
    "block_size": 32,
    "max_model_len": 256,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 16,
    "num_gpu_blocks_override": 128,
}
TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}{% if add_generation_prompt %}w9{% endif %}"


@pytest.fixture(scope="module")
def api(tiny_model: Path) -> Iterator[Engine]:
    with Engine(str(tiny_model), **SMALL) as engine:
        yield engine


def token_ids(outputs: list[Any]) -> list[list[int]]:
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_embeddings_are_those_of_transformers(api: Engine, tiny_model: Path) -> None:
    prompts = [tokens(i, n) for i, n in enumerate((1, 40, 200))]
    states = reference_hidden_states(tiny_model, prompts)
    for head in ("mean", "last"):
        vectors = api.embed(prompts, pooling=head)
        assert (vectors.shape, vectors.dtype) == ((3, 128), np.float32)
        np.testing.assert_allclose(vectors, [pooled(s, head) for s in states], atol=1e-5)
    raw = api.embed(prompts[1], normalize=False)
    np.testing.assert_allclose(raw[0], states[1].mean(0), rtol=1e-3, atol=1e-4)


def test_text_and_token_ids_are_one_input_each(api: Engine) -> None:
    one = api.embed("w7 w8 w9")
    assert one.shape == (1, 128)
    np.testing.assert_allclose(api.embed([7, 8, 9]), one, atol=1e-6)
    np.testing.assert_allclose(api.embed(((7, 8, 9), (5,)))[:1], one, atol=1e-6)
    np.testing.assert_allclose(api.embed("w7 w8 w9 w6", truncate_prompt_tokens=3), one, atol=1e-6)


def test_prompts_of_every_form_and_sampling_for_each(api: Engine) -> None:
    text, ids, dictionary = api.generate(
        ["w7 w8 w9", [7, 8, 9], {"prompt_token_ids": [7, 8, 9]}], [generate(4), generate(4), generate(6)]
    )
    assert token_ids([text]) == token_ids([ids])
    assert len(dictionary.outputs[0].token_ids) == 6
    assert token_ids([dictionary])[0][:4] == token_ids([text])[0]
    assert len(api.generate([7, 8, 9], SamplingParams(n=2, max_tokens=3))[0].outputs) == 2


def test_a_chat_is_a_completion_of_the_filled_template(api: Engine) -> None:
    messages = [{"role": "user", "content": "w7 w8"}]
    (answer,) = api.chat(messages, generate(5), chat_template=TEMPLATE)
    assert answer.prompt_token_ids == [7, 8, 9]
    assert token_ids([answer]) == token_ids(api.generate([7, 8, 9], generate(5)))
    assert len(api.chat([messages, messages], generate(2), chat_template=TEMPLATE)) == 2


async def test_async_calls_and_streams_agree_with_the_sync_ones(api: Engine) -> None:
    prompt = tokens(3, 100)
    wanted = api.generate(prompt, generate(12))
    (got, vectors, chatted) = await asyncio.gather(
        api.generate_async(prompt, generate(12)),
        api.embed_async([prompt, [7]]),
        api.chat_async([{"role": "user", "content": "w7"}], generate(3), chat_template=TEMPLATE),
    )
    assert token_ids(got) == token_ids(wanted)
    np.testing.assert_allclose(vectors, api.embed([prompt, [7]]), atol=1e-5)
    deltas = [output async for output in api.generate_stream(prompt, generate(12))]
    assert len(deltas) > 1
    assert [t for d in deltas for t in d.outputs[0].token_ids] == token_ids(wanted)[0]
    assert [d.finished for d in deltas] == [False] * (len(deltas) - 1) + [True]
    stream = api.chat_stream([{"role": "user", "content": "w7"}], generate(3), chat_template=TEMPLATE)
    assert [t for d in [d async for d in stream] for t in d.outputs[0].token_ids] == token_ids(chatted)[0]


async def test_what_is_left_early_is_aborted(api: Engine) -> None:
    endless = generate(200)
    async for _ in api.generate_stream("w7", endless):
        break
    task = asyncio.create_task(api.generate_async(["w7", "w8"], endless))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    api.embed("w7")  # a step after the aborts, which tells the worker
    assert not any(held(api).values())


def held(api: Engine) -> dict[str, int]:
    async def ask() -> Any:
        return await api._llm.collective_rpc("integrity")

    return api._background.wait(ask())[0]


def test_threads_share_steps(tiny_model: Path, tmp_path: Path) -> None:
    trace = tmp_path / "steps.jsonl"
    prompts = [tokens(i, 150) for i in range(6)]
    with Engine(str(tiny_model), **SMALL, trace_steps=str(trace)) as api:
        alone = token_ids(api.generate(prompts, generate(24)))
        vectors = api.embed(prompts)
        with ThreadPoolExecutor(8) as pool:
            generated = [pool.submit(api.generate, prompt, generate(24)) for prompt in prompts]
            embedded = [pool.submit(api.embed, prompt) for prompt in prompts]
            assert [token_ids(future.result())[0] for future in generated] == alone
            np.testing.assert_allclose(
                np.concatenate([future.result() for future in embedded]), vectors, atol=1e-5
            )
    steps = [json.loads(line)["tokens"] for line in trace.read_text().splitlines()]
    assert any(step["embed"] and step["decode"] for step in steps)


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        ("", {}, "empty string"),
        ([], {}, "empty list"),
        (["w7", ""], {}, r"input\[1\] is empty"),
        ([7, 512], {}, "whole numbers from 0 to 511"),
        ([{"role": "user"}], {}, "dictionary"),
        ([7] * 257, {}, "at most 256"),
        ("w7 " * 257, {}, "256"),
        ("w7", {"pooling": "max"}, "pooling is 'max'; allowed: mean"),
        ("w7", {"dimensions": 64}, "128 dimensions only"),
        ("w7", {"normalize": "yes"}, "true or false"),
        ("w7", {"truncate_prompt_tokens": 300}, "1 to 256"),
    ],
)
def test_bad_embedding_inputs(api: Engine, inputs: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        api.embed(inputs, **options)


@pytest.mark.parametrize(
    ("prompts", "params", "error", "message"),
    [
        ([], None, TypeError, "not empty"),
        ([3.5], None, TypeError, r"prompts\[0\] is 3.5"),
        ("w7", PoolingParams(task="embed"), TypeError, "vllm.SamplingParams"),
        (["w7", "w8"], [SamplingParams()], ValueError, "1 sampling_params for 2 inputs"),
        ([7] * 256, None, ValueError, "256"),
        ([7, 512], None, ValueError, "512"),
    ],
)
def test_bad_prompts(api: Engine, prompts: Any, params: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        api.generate(prompts, params)
    assert len(api.generate("w7", generate(2))) == 1


def test_bad_conversations_options_and_adapters(api: Engine) -> None:
    with pytest.raises(TypeError, match="a list of messages"):
        api.chat("hello")
    with pytest.raises(TypeError, match="'role'"):
        api.chat([{"content": "w7"}])
    with pytest.raises(TypeError, match="template"):
        api.chat([{"role": "user", "content": "w7"}], template="x")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="chat template"):
        api.chat([{"role": "user", "content": "w7"}])
    with pytest.raises(ValueError, match="LoRA is not enabled"):
        api.generate("w7", lora_request=LoRARequest("adapter", 1, "nowhere"))
    with pytest.raises(ValueError, match="LoRA is not enabled"):
        api.embed("w7", lora_request=LoRARequest("adapter", 1, "nowhere"))
    with pytest.raises(ValueError, match="one input"):
        api.generate_stream(["w7", "w8"])  # type: ignore[arg-type]


def test_bad_engine_arguments_are_refused_before_anything_starts(tiny_model: Path) -> None:
    with pytest.raises(TypeError, match=r"option of the policy: policy_options=\{'embed_chunk': ...\}"):
        Engine(str(tiny_model), embed_chunk=16)
    with pytest.raises(TypeError, match="did you mean 'max_model_len'"):
        Engine(str(tiny_model), max_model_length=5)
    with pytest.raises(ValueError, match=r"unknown policy 'fifo'; allowed: .*ibs"):
        Engine(str(tiny_model), policy="fifo")
    with pytest.raises(ValueError, match="arguments of Engine"):
        Engine(str(tiny_model), additional_config={"orthrus": {}})
    with pytest.raises(ValueError, match="speculative decoding"):
        Engine(str(tiny_model), **SMALL, speculative_config={"method": "ngram", "num_speculative_tokens": 2})


def test_close_ends_what_runs_and_leaves_nothing(tiny_model: Path) -> None:
    before = set(multiprocessing.active_children())
    loops = [thread.name for thread in threading.enumerate()].count("orthrus-engine")
    engine = Engine(str(tiny_model), **SMALL)
    started = set(multiprocessing.active_children()) - before
    assert started
    with ThreadPoolExecutor(1) as pool:
        endless = pool.submit(engine.generate, ["w7"] * 40, generate(250))
        engine.embed("w7")
        engine.close()
        with pytest.raises(EngineClosedError):
            endless.result()
    engine.close()
    assert not any(process.is_alive() for process in started)
    assert [thread.name for thread in threading.enumerate()].count("orthrus-engine") == loops
    with pytest.raises(EngineClosedError, match="closed"):
        engine.embed("w7")
    with pytest.raises(EngineClosedError):
        asyncio.run(engine.generate_async("w7"))


def test_vllms_own_llm_generates_and_refuses_to_embed(engine: Any, tiny_model: Path) -> None:
    llm = engine(tiny_model)
    (output,) = llm.generate({"prompt_token_ids": [7, 8, 9]}, generate(3), use_tqdm=False)
    messages = [{"role": "user", "content": "w7 w8"}]
    (answer,) = llm.chat(messages, generate(3), use_tqdm=False, chat_template=TEMPLATE)
    assert token_ids([answer]) == token_ids([output])
    with pytest.raises(ValueError, match="only supported for pooling models"):
        llm.embed("w7 w8", use_tqdm=False)


def test_import_orthrus_imports_neither_torch_nor_vllm() -> None:
    check = "import orthrus, sys; assert not {'torch', 'vllm', 'numpy'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", check], check=True)
