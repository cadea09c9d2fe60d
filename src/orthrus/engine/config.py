"""Orthrus' own settings, how they travel inside vLLM's configuration, and how they change it.

They travel as `additional_config["orthrus"]` (plain values, so that every process of vLLM gets them);
`apply` turns a finished stock VllmConfig into one that runs mixed steps.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections import UserDict
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

from orthrus.engine import checkpoint, compat, cpu_cores, cpu_dtype, cpu_memory
from orthrus.engine.slots import default_embed_slots
from orthrus.engine.step_size import CPU_PROMPT_TOKENS
from orthrus.policy.options import DAY_S, PolicyOptions
from orthrus.policy.registry import POLICIES, make
from orthrus.pooling.buffered import load_function
from orthrus.pooling.heads import Head
from orthrus.pooling.select import choose_head

if TYPE_CHECKING:
    from orthrus.engine.compat import EngineArgs, ModelConfig, SchedulerConfig, VllmConfig

logger = logging.getLogger("vllm.orthrus")

KEY = "orthrus"
EMBEDDING_ONLY = (
    "Orthrus serves generative models (runner 'generate'), which it also lets embed. "
    "For an embedding-only model use stock vLLM"
)
RUNNER_SWITCH = "VLLM_USE_V2_MODEL_RUNNER"
INVARIANCE_SWITCH = "VLLM_BATCH_INVARIANT"


class UnsupportedConfigError(ValueError):
    """A vLLM setting that mixed steps cannot honour; the message names it and the way out."""


class CheckpointPooling(BaseModel):
    """What the checkpoint's sentence-transformers files in `folder` ask for; `size` is a vector's length."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: str
    head: Head
    normalize: bool
    size: int


class OrthrusConfig(BaseModel):
    """Settings of one engine: flags of `orthrus serve`, but for what `prepare` and `apply` find.

    Those are `kv_from_free` (the KV cache's size is nobody's choice but ours) and `checkpoint`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: str = "ibs"
    policy_options: dict[str, Any] = Field(default_factory=dict)
    pooling: str | None = None
    allowed_pooling: tuple[str, ...] = tuple(h.value for h in Head if h is not Head.BUFFERED)
    matryoshka: bool = False
    prefix_sums_mib: float = Field(default=64, ge=0)
    pooling_function: str | None = None
    pooling_buffer_tokens: int = Field(default=0, ge=0)
    max_spans: int = Field(default=256, ge=1)
    embed_slots: int | None = Field(default=None, ge=0)
    generation_slots: int | None = None
    mixed_step_tokens: int | None = Field(default=None, ge=0)
    itl_target_s: float = Field(default=0.0, ge=0, le=DAY_S, allow_inf_nan=False)
    batch_invariant: bool = False
    trace_steps: str | None = None
    kv_from_free: bool = False
    checkpoint: CheckpointPooling | None = None

    def model_post_init(self, _context: object) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"unknown policy {self.policy!r}; allowed: {', '.join(sorted(POLICIES))}")
        make(self.policy, PolicyOptions(**self.policy_options))  # refuses what this policy does not use
        if self.itl_target_s and self.policy == "homogeneous":
            raise ValueError("itl_target_s needs steps that hold both kinds: policy ibs or fcfs")
        for name in (*self.allowed_pooling, *([self.pooling] if self.pooling else [])):
            Head.parse(name)
        if self.pooling_function and not self.pooling_buffer_tokens:
            raise ValueError("a pooling function needs memory: set --pooling-buffer-tokens, too")
        if Head.BUFFERED in (self.pooling, *self.allowed_pooling) and not self.pooling_function:
            raise ValueError("the buffered head needs a function: name it with --pooling-function")

    @cached_property
    def heads(self) -> tuple[Head, ...]:
        """The heads that requests may ask for; the buffered one only where the operator named a function."""
        buffered = [Head.BUFFERED] if self.pooling_function else []
        return tuple(dict.fromkeys([*(Head(name) for name in self.allowed_pooling), *buffered]))

    def head(self, request: str | None = None, adapter: Head | None = None) -> Head:
        """The head of a request: `choose_head` over this engine's sources. Raises PoolingConfigError."""
        return choose_head(
            allowed=self.heads,
            checkpoint=self.checkpoint.head if self.checkpoint else None,
            adapter=adapter,
            command_line=Head(self.pooling) if self.pooling else None,
            request=request,
        )

    @classmethod
    def of(cls, vllm_config: VllmConfig) -> OrthrusConfig:
        """The settings inside a VllmConfig; the defaults where it carries none."""
        return cls(**(vllm_config.additional_config or {}).get(KEY, {}))


class AdditionalConfig(UserDict[str, Any]):
    """An engine's `additional_config`, of whose settings of ours a compiled model depends on few.

    vLLM puts a hash of all of a dict into the key of its compiled models (vllm/config/vllm.py,
    `compute_hash`), so that another path for a trace would compile for minutes. Other types it asks.
    """

    def compute_hash(self) -> str:
        """What vLLM asks for: everybody else's entries, and the layers that `batch_invariant` chooses."""
        settings = OrthrusConfig(**self[KEY])
        factors = {**self, KEY: settings.batch_invariant}
        return hashlib.sha256(json.dumps(factors, sort_keys=True).encode()).hexdigest()


def is_requested(additional_config: object) -> bool:
    """Whether an engine's `additional_config` asks for Orthrus."""
    return isinstance(additional_config, Mapping) and KEY in additional_config


def choose_runner_generation() -> None:
    """Select vLLM's V1 model runner, which Orthrus extends, before vLLM reads the switch.

    Raises UnsupportedConfigError when the user has asked for the V2 runner.
    """
    if os.environ.get(RUNNER_SWITCH) == "1":
        raise UnsupportedConfigError(
            f"{RUNNER_SWITCH}=1 asks for vLLM's V2 model runner, which Orthrus does not support yet; unset it"
        )
    os.environ[RUNNER_SWITCH] = "0"


def prepare(engine_args: EngineArgs) -> None:
    """Settle what vLLM would decide otherwise before its own validation.

    A generative checkpoint with sentence-transformers files would be loaded for embeddings only
    (vllm/config/model.py, `_get_default_runner_type`). Raises UnsupportedConfigError for a pooler config
    and for asynchronous scheduling over a pipeline.
    """
    if engine_args.pooler_config is not None:
        raise UnsupportedConfigError(
            "Orthrus pools by itself: choose the head with --pooling, not --pooler-config"
        )
    if engine_args.runner == "auto":
        engine_args.runner = "generate"
    if engine_args.pipeline_parallel_size > 1:
        if engine_args.async_scheduling:
            raise UnsupportedConfigError(
                "--async-scheduling does not work with pipeline parallelism on vLLM's V1 runner; drop it"
            )
        engine_args.async_scheduling = False
    cpu_dtype.choose(engine_args)
    cpu_cores.use_all(engine_args)
    if cpu_memory.leave_room(engine_args):
        settings = {**engine_args.additional_config[KEY], "kv_from_free": True}
        engine_args.additional_config = {**engine_args.additional_config, KEY: settings}


def apply(vllm_config: VllmConfig) -> None:
    """Make a finished VllmConfig run Orthrus' scheduler, worker and pooling. Safe to call twice.

    Runs after vLLM's own validation on purpose: with a pooler config present, vLLM would turn chunked
    prefill off for mean and CLS pooling and give up full CUDA graphs for decodes, neither of which
    mixed steps need (vllm/config/model.py, is_chunked_prefill_supported).
    """
    config = OrthrusConfig.of(vllm_config)
    _refuse_unsupported(vllm_config)
    _check_invariance(config)
    worker = "orthrus.engine.worker_cpu.CPUWorker"
    if not compat.current_platform.is_cpu():
        worker = "orthrus.engine.worker_gpu.GPUWorker"
    vllm_config.parallel_config.worker_cls = worker
    scheduler = vllm_config.scheduler_config
    scheduler.scheduler_cls = (
        "orthrus.engine.scheduler.AsyncMixedScheduler"
        if scheduler.async_scheduling
        else "orthrus.engine.scheduler.MixedScheduler"
    )
    model = vllm_config.model_config
    found = _checkpoint_pooling(model)
    generation_slots = config.generation_slots or _add_embed_slots(config, scheduler)
    step_tokens = config.mixed_step_tokens
    if step_tokens is None and config.policy == "ibs" and compat.current_platform.is_cpu():
        step_tokens = CPU_PROMPT_TOKENS
    config = config.model_copy(
        update={
            "checkpoint": found,
            "generation_slots": generation_slots,
            "mixed_step_tokens": step_tokens,
        }
    )
    settings = config.model_dump(mode="json", exclude_defaults=True)
    vllm_config.additional_config = AdditionalConfig({**vllm_config.additional_config, KEY: settings})
    if config.pooling_function:
        load_function(config.pooling_function)  # an operator's mistake is refused here, before any worker
    if config.matryoshka:
        model.hf_config.is_matryoshka = True
    if model.pooler_config is None:
        model.pooler_config = compat.PoolerConfig(
            task="embed",
            seq_pooling_type="LAST",
            tok_pooling_type="ALL",
            use_activation=found is None or found.normalize,
        )
        source = "--pooling" if config.pooling else found.folder if found else "Orthrus' default"
        logger.info("Embeddings: pooling head %r (from %s)", config.head().value, source)


def _add_embed_slots(config: OrthrusConfig, scheduler: SchedulerConfig) -> int:
    """Give the batch its rows for embeddings; returns the slots that generations keep."""
    kept: int = scheduler.max_num_active_seqs or scheduler.max_num_seqs
    extra = config.embed_slots
    scheduler.max_num_seqs += default_embed_slots(scheduler.max_num_seqs) if extra is None else extra
    return kept


def _checkpoint_pooling(model: ModelConfig) -> CheckpointPooling | None:
    folder = checkpoint.folder_of(model)
    recipe = checkpoint.recipe_in(str(folder)) if folder else None
    if folder is None or recipe is None:
        return None
    hidden_size = model.get_hidden_size()
    checkpoint.check_width(recipe, hidden_size, folder)
    return CheckpointPooling(
        folder=str(folder),
        head=recipe.head,
        normalize=recipe.normalize,
        size=recipe.dense[-1].out_features if recipe.dense else hidden_size,
    )


def _check_invariance(config: OrthrusConfig) -> None:
    if compat.current_platform.is_cpu():
        if os.environ.get(INVARIANCE_SWITCH, "0") != "0":
            raise UnsupportedConfigError(
                f"{INVARIANCE_SWITCH} works on GPUs only; unset it, and use --batch-invariant on CPU"
            )
    elif config.batch_invariant:
        raise UnsupportedConfigError(f"--batch-invariant is for CPUs; set {INVARIANCE_SWITCH}=1 on a GPU")


def _refuse_unsupported(vllm_config: VllmConfig) -> None:
    model = vllm_config.model_config
    if model.runner_type != "generate":
        raise UnsupportedConfigError(f"the model loads with runner {model.runner_type!r}. {EMBEDDING_ONLY}")
    if vllm_config.speculative_config is not None:
        raise UnsupportedConfigError(
            "speculative decoding does not work in mixed steps yet; drop --speculative-config"
        )
    if model.is_encoder_decoder or model.is_diffusion:
        raise UnsupportedConfigError("encoder-decoder and diffusion models cannot be served by Orthrus")
    if model.is_attention_free or model.is_hybrid:
        raise UnsupportedConfigError(
            "attention-free and hybrid (Mamba) models cannot be served by Orthrus yet"
        )
    if not vllm_config.scheduler_config.enable_chunked_prefill:
        raise UnsupportedConfigError("Orthrus needs chunked prefill; drop --no-enable-chunked-prefill")
    if vllm_config.cache_config.kv_sharing_fast_prefill:
        raise UnsupportedConfigError("--kv-sharing-fast-prefill does not work in mixed steps")
    if vllm_config.parallel_config.decode_context_parallel_size > 1:
        raise UnsupportedConfigError("decode context parallelism does not work in mixed steps yet")
    if vllm_config.use_v2_model_runner:
        raise UnsupportedConfigError(
            f"vLLM chose its V2 model runner although {RUNNER_SWITCH}=0; Orthrus needs the V1 runner"
        )
