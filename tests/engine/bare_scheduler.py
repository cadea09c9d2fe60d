"""A scheduler without a model or a worker, for the tests of what it decides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from engine_driver import generate
from vllm import PoolingParams, SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.lora.request import LoRARequest
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCK = 32


def make_scheduler(cls: type, model: Path, blocks: int = 1000, **kwargs: Any) -> Any:
    """`cls` over the configuration of an Orthrus engine for `model`; `kwargs` are engine arguments."""
    settings = kwargs.pop("orthrus", {"policy": "fcfs"})
    defaults = {
        "block_size": BLOCK,
        "max_num_batched_tokens": 128,
        "max_model_len": 512,
        "max_num_seqs": 32,
        "enable_prefix_caching": False,
        "dtype": "float32",
    }
    config = EngineArgs(
        model=str(model), additional_config={"orthrus": settings}, **(defaults | kwargs)
    ).create_engine_config()
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=2, head_size=32, dtype=torch.float32)
    return cls(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(
            num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        ),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK,
    )


def request(
    name: str,
    length: int,
    params: PoolingParams | SamplingParams | None = None,
    adapter: int = 0,
) -> Request:
    """A request of `length` tokens; without `params` a generation of 16 tokens."""
    params = params or generate(16)
    pooling = params if isinstance(params, PoolingParams) else None
    return Request(
        request_id=name,
        prompt_token_ids=[7] * length,
        sampling_params=None if pooling else params,
        pooling_params=pooling,
        lora_request=LoRARequest(f"adapter-{adapter}", adapter, "nowhere") if adapter else None,
    )


def hashed(name: str, tokens: list[int], params: PoolingParams | SamplingParams) -> Request:
    """A request of these `tokens` that the prefix cache can tell from others."""
    init_none_hash(sha256)
    pooling = params if isinstance(params, PoolingParams) else None
    return Request(
        request_id=name,
        prompt_token_ids=tokens,
        sampling_params=None if pooling else params,
        pooling_params=pooling,
        block_hasher=get_request_block_hasher(BLOCK, sha256),
    )


def answer(scheduler: Any, output: SchedulerOutput) -> set[str]:
    """Stand in for the worker: one token per decode, one vector per complete embedding; who finished."""
    scheduler.get_grammar_bitmask(output)
    ids = list(output.num_scheduled_tokens)
    computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    computed |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    tokens: list[list[int]] = []
    vectors: list[torch.Tensor | None] = []
    for name in ids:
        held = scheduler.requests.get(name)
        whole = held is not None and computed[name] + output.num_scheduled_tokens[name] >= held.num_tokens
        embeds = held is not None and held.pooling_params is not None
        tokens.append([5] if whole and not embeds else [])
        vectors.append(torch.ones(4) if whole and embeds else None)
    result = ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={name: i for i, name in enumerate(ids)},
        sampled_token_ids=tokens,
        pooler_output=vectors,
    )
    outputs = scheduler.update_from_output(output, result)
    return {o.request_id for outs in outputs.values() for o in outs.outputs if o.finish_reason is not None}
