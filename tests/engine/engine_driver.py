"""Drives in-process vLLM engines step by step for the engine tests."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from vllm import LLM, PoolingParams, SamplingParams
from vllm.sampling_params import RequestOutputKind

from tiny_llama import random_llama, write_checkpoint

TINY_VOCABULARY = 512
TINY_MAX_LEN = 512


@dataclass
class Job:
    """One request: arrives before step `at`, is aborted before step `abort_at` if that is set."""

    name: str
    prompt: Sequence[int]
    params: SamplingParams | PoolingParams
    at: int = 0
    abort_at: int | None = None
    lora: Any = None
    priority: int = 0
    cache_salt: str | None = None


@dataclass
class Finished:
    """What a generation gave: token ids and log-probabilities by output index, prompt log-probabilities."""

    tokens: dict[int, tuple[int, ...]] = field(default_factory=dict)
    logprobs: dict[int, list[dict[int, float]]] = field(default_factory=dict)
    prompt_logprobs: list[dict[int, float]] | None = None
    reasons: dict[int, tuple[str | None, Any]] = field(default_factory=dict)


def generate(max_tokens: int = 16, **kwargs: Any) -> SamplingParams:
    """Greedy, of fixed length and answered once, unless the arguments say otherwise."""
    kwargs = {"temperature": 0.0, "ignore_eos": True, "output_kind": RequestOutputKind.FINAL_ONLY} | kwargs
    return SamplingParams(max_tokens=max_tokens, **kwargs)


def embed(pooling: str | None = None, **kwargs: Any) -> PoolingParams:
    extra = {"pooling": pooling} if pooling else None
    return PoolingParams(task="embed", extra_kwargs=extra, **kwargs)


def tokens(seed: int, length: int, vocabulary: int = TINY_VOCABULARY) -> list[int]:
    """A random prompt without special tokens."""
    return np.random.default_rng(seed).integers(5, vocabulary, length).tolist()


def run(llm: LLM, jobs: Iterable[Job], max_steps: int = 4000) -> dict[str, Any]:
    """Run the jobs to their ends: a `Finished` for each generation, a float32 vector for each embedding.

    Aborted jobs are missing from the answer unless they finished before their abort.
    """
    engine = llm.llm_engine
    waiting = sorted(jobs, key=lambda job: job.at)
    aborts = [(job.abort_at, job.name) for job in waiting if job.abort_at is not None]
    done: dict[str, Any] = {}
    step = 0
    while waiting or engine.has_unfinished_requests():
        assert step < max_steps, f"the engine still runs after {max_steps} steps: a request hangs"
        while waiting and waiting[0].at <= step:
            job = waiting.pop(0)
            prompt: dict[str, Any] = {"prompt_token_ids": list(job.prompt)}
            if job.cache_salt is not None:
                prompt["cache_salt"] = job.cache_salt
            engine.add_request(job.name, prompt, job.params, lora_request=job.lora, priority=job.priority)
        for at, name in aborts:
            if at == step:
                engine.abort_request([name])
        for output in engine.step():
            if output.finished:
                done[output.request_id] = _result(output)
        if not scheduler_of(llm).running:
            time.sleep(0.005)  # a grammar may be compiling in another thread, which needs the core
        step += 1
    return done


def embed_all(llm: LLM, prompts: Sequence[Sequence[int]], pooling: str | None = None, **kwargs: Any) -> Any:
    """Vectors [n, d] of `prompts`, all added at once."""
    jobs = [Job(f"e{i}", prompt, embed(pooling, **kwargs)) for i, prompt in enumerate(prompts)]
    answers = run(llm, jobs)
    return np.stack([answers[job.name] for job in jobs])


def _result(output: Any) -> Any:
    if hasattr(output.outputs, "data"):
        return output.outputs.data.numpy()
    result = Finished()
    for completion in output.outputs:
        result.tokens[completion.index] = tuple(completion.token_ids)
        result.reasons[completion.index] = (completion.finish_reason, completion.stop_reason)
        if completion.logprobs is not None:
            result.logprobs[completion.index] = [_values(p) for p in completion.logprobs]
    if output.prompt_logprobs is not None:
        result.prompt_logprobs = [_values(p) for p in output.prompt_logprobs if p is not None]
    return result


def _values(position: Any) -> dict[int, float]:
    return {token: entry.logprob for token, entry in position.items()}


def assert_same_generation(got: Finished, wanted: Finished, name: str = "") -> None:
    """Same tokens and reasons; the same log-probabilities within 1e-4."""
    assert got.tokens == wanted.tokens, name
    assert got.reasons == wanted.reasons, name
    assert got.logprobs.keys() == wanted.logprobs.keys(), name
    for index in wanted.logprobs:
        _assert_close(got.logprobs[index], wanted.logprobs[index], name)
    assert (got.prompt_logprobs is None) == (wanted.prompt_logprobs is None), name
    if wanted.prompt_logprobs is not None:
        _assert_close(got.prompt_logprobs or [], wanted.prompt_logprobs, name)


def _assert_close(got: list[dict[int, float]], wanted: list[dict[int, float]], name: str) -> None:
    assert len(got) == len(wanted), name
    for ours, theirs in zip(got, wanted, strict=True):
        # The last of the top k may tie; what both list must agree.
        common = ours.keys() & theirs.keys()
        assert len(common) >= len(theirs) - 1, name
        for token in common:
            assert ours[token] == theirs[token] or abs(ours[token] - theirs[token]) < 1e-4, name


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def scheduler_of(llm: LLM) -> Any:
    return llm.llm_engine.engine_core.engine_core.scheduler


def runner_of(llm: LLM) -> Any:
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


def assert_idle(llm: LLM) -> None:
    """Nothing is left behind in the scheduler or the worker."""
    core = llm.llm_engine.engine_core.engine_core
    # The worker hears of the last finished requests with the next step, as in vLLM's own loop.
    if core.scheduler.has_requests():
        core.step()
    held = core.orthrus_check_idle()
    for counts in (held["scheduler"], *held["workers"]):
        assert not any(counts.values()), held


def make_tiny_model(folder: Path) -> Path:
    """A random Llama whose vocabulary has what JSON needs; it may end at id 2 only."""
    model = random_llama(
        hidden_size=128,
        intermediate_size=256,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=TINY_VOCABULARY,
        max_position_embeddings=2 * TINY_MAX_LEN,
        tie_word_embeddings=True,
    )
    write_checkpoint(folder, model, vocabulary())
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    return folder


def vocabulary() -> dict[str, int]:
    """Words w0, w1 ...; the characters that JSON and small regular expressions need come last."""
    words = {f"w{i}": i for i in range(TINY_VOCABULARY)}
    for i, text in enumerate(["{", "}", '"', ":", "a", "b", "0", "1", "2", ",", "yes", "no", " "]):
        del words[f"w{TINY_VOCABULARY - 1 - i}"]
        words[text] = TINY_VOCABULARY - 1 - i
    return words


def reference_hidden_states(model: Path, prompts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    """The last layer's hidden states [n, d] by transformers in float32, one prompt at a time."""
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    with torch.inference_mode():
        return [network.model(torch.tensor([list(p)])).last_hidden_state[0] for p in prompts]


def pooled(states: torch.Tensor, head: str) -> np.ndarray:
    """The definition of each head, in float64, scaled to length 1."""
    rows = states.double()
    positions = torch.arange(1, len(rows) + 1, dtype=torch.float64)
    vector = {
        "mean": lambda: rows.mean(0),
        "last": lambda: rows[-1],
        "cls": lambda: rows[0],
        "weighted_mean": lambda: (rows * positions[:, None]).sum(0) / positions.sum(),
    }[head]()
    return (vector / vector.norm()).numpy()
