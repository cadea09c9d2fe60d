"""Every private part of vLLM that Orthrus touches, in one table, with the version check.

Nothing else in Orthrus imports from `vllm.v1` or from vLLM's internals: a new vLLM is a review of this
file and of `docs/vllm-seam.md`. Names resolve on first use (PEP 562), because importing the model
runner is slow and an API process never needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm import AsyncLLMEngine as AsyncLLMEngine
    from vllm import envs as envs
    from vllm.config import CompilationMode as CompilationMode
    from vllm.config import ModelConfig as ModelConfig
    from vllm.config import PoolerConfig as PoolerConfig
    from vllm.config import SchedulerConfig as SchedulerConfig
    from vllm.config import VllmConfig as VllmConfig
    from vllm.config import get_layers_from_vllm_config as get_layers_from_vllm_config
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition as SpinCondition
    from vllm.distributed.parallel_state import get_pp_group as get_pp_group
    from vllm.engine.arg_utils import AsyncEngineArgs as AsyncEngineArgs
    from vllm.engine.arg_utils import EngineArgs as EngineArgs
    from vllm.entrypoints.cli.serve import ServeSubcommand as ServeSubcommand
    from vllm.entrypoints.launchers.cli_args import make_arg_parser as make_arg_parser
    from vllm.entrypoints.launchers.cli_args import validate_parsed_serve_args as validate_parsed_serve_args
    from vllm.entrypoints.pooling.base.protocol import (
        reject_removed_pooling_parameters as reject_removed_pooling_parameters,
    )
    from vllm.entrypoints.pooling.embed.io_processor import TokenEmbedIOProcessor as TokenEmbedIOProcessor
    from vllm.entrypoints.pooling.embed.protocol import (
        EmbeddingCompletionRequest as EmbeddingCompletionRequest,
    )
    from vllm.entrypoints.pooling.embed.protocol import EmbeddingRequest as EmbeddingRequest
    from vllm.entrypoints.pooling.embed.serving import ServingEmbedding as ServingEmbedding
    from vllm.entrypoints.pooling.pooling.serving import ServingPooling as ServingPooling
    from vllm.entrypoints.pooling.scoring.io_processor import ScoringIOProcessors as ScoringIOProcessors
    from vllm.entrypoints.pooling.scoring.serving import ServingScores as ServingScores
    from vllm.entrypoints.serve.middleware.authenticate import (
        AuthenticationMiddleware as AuthenticationMiddleware,
    )
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup as cli_env_setup
    from vllm.entrypoints.serve.utils.api_utils import load_aware_call as load_aware_call
    from vllm.entrypoints.serve.utils.api_utils import validate_json_request as validate_json_request
    from vllm.entrypoints.serve.utils.api_utils import with_cancellation as with_cancellation
    from vllm.exceptions import GenerationError as GenerationError
    from vllm.exceptions import GracefulHTTPError as GracefulHTTPError
    from vllm.exceptions import VLLMError as VLLMError
    from vllm.exceptions import VLLMValidationError as VLLMValidationError
    from vllm.logger import configure_logging_from_args as configure_logging_from_args
    from vllm.lora.layers import LoRAMapping as LoRAMapping
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU as PunicaWrapperCPU
    from vllm.lora.request import LoRARequest as LoRARequest
    from vllm.model_executor.layers.attention import Attention as Attention
    from vllm.model_executor.layers.utils import (
        dispatch_cpu_unquantized_gemm as dispatch_cpu_unquantized_gemm,
    )
    from vllm.outputs import RequestOutput as RequestOutput
    from vllm.platforms import current_platform as current_platform
    from vllm.platforms.cpu import CpuPlatform as CpuPlatform
    from vllm.pooling_params import PoolingParams as PoolingParams
    from vllm.renderers import ChatParams as ChatParams
    from vllm.renderers.chat_utils import ChatCompletionMessageParam as ChatCompletionMessageParam
    from vllm.sampling_params import RequestOutputKind as RequestOutputKind
    from vllm.sampling_params import SamplingParams as SamplingParams
    from vllm.transformers_utils.repo_utils import file_or_path_exists as file_or_path_exists
    from vllm.utils.argparse_utils import FlexibleArgumentParser as FlexibleArgumentParser
    from vllm.v1.attention.backend import CommonAttentionMetadata as CommonAttentionMetadata
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder as CPUAttentionMetadataBuilder
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler as AsyncScheduler
    from vllm.v1.core.sched.output import SchedulerOutput as SchedulerOutput
    from vllm.v1.core.sched.request_queue import RequestQueue as RequestQueue
    from vllm.v1.core.sched.request_queue import SchedulingPolicy as SchedulingPolicy
    from vllm.v1.core.sched.scheduler import PauseState as PauseState
    from vllm.v1.core.sched.scheduler import Scheduler as Scheduler
    from vllm.v1.engine.core import EngineCore as EngineCore
    from vllm.v1.engine.input_processor import InputProcessor as InputProcessor
    from vllm.v1.kv_cache_interface import FullAttentionSpec as FullAttentionSpec
    from vllm.v1.outputs import AsyncModelRunnerOutput as AsyncModelRunnerOutput
    from vllm.v1.outputs import ModelRunnerOutput as ModelRunnerOutput
    from vllm.v1.request import Request as Request
    from vllm.v1.request import RequestStatus as RequestStatus
    from vllm.v1.sample.metadata import SamplingMetadata as SamplingMetadata
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner as CPUModelRunner
    from vllm.v1.worker.cpu_worker import CPUWorker as CPUWorker
    from vllm.v1.worker.gpu_input_batch import CachedRequestState as CachedRequestState
    from vllm.v1.worker.gpu_input_batch import InputBatch as InputBatch
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner as GPUModelRunner


SUPPORTED_VLLM = "0.32.0"

STOCK_CPU_WRAPPER = "vllm.lora.punica_wrapper.punica_cpu.PunicaWrapperCPU"
"""What `CpuPlatform.get_punica_wrapper` names as long as nobody has replaced it."""

# name -> (module, attribute). The order is that of one request's way through the engine.
SEAM: dict[str, tuple[str, str]] = {
    "EngineArgs": ("vllm.engine.arg_utils", "EngineArgs"),
    "AsyncEngineArgs": ("vllm.engine.arg_utils", "AsyncEngineArgs"),
    "CompilationMode": ("vllm.config", "CompilationMode"),
    "VllmConfig": ("vllm.config", "VllmConfig"),
    "PoolerConfig": ("vllm.config", "PoolerConfig"),
    "envs": ("vllm", "envs"),
    "current_platform": ("vllm.platforms", "current_platform"),
    "file_or_path_exists": ("vllm.transformers_utils.repo_utils", "file_or_path_exists"),
    "PoolingParams": ("vllm.pooling_params", "PoolingParams"),
    "SamplingParams": ("vllm.sampling_params", "SamplingParams"),
    "LoRARequest": ("vllm.lora.request", "LoRARequest"),
    "RequestOutput": ("vllm.outputs", "RequestOutput"),
    "VLLMValidationError": ("vllm.exceptions", "VLLMValidationError"),
    "GenerationError": ("vllm.exceptions", "GenerationError"),
    "GracefulHTTPError": ("vllm.exceptions", "GracefulHTTPError"),
    "FlexibleArgumentParser": ("vllm.utils.argparse_utils", "FlexibleArgumentParser"),
    "configure_logging_from_args": ("vllm.logger", "configure_logging_from_args"),
    "cli_env_setup": ("vllm.entrypoints.serve.utils.api_utils", "cli_env_setup"),
    "make_arg_parser": ("vllm.entrypoints.launchers.cli_args", "make_arg_parser"),
    "validate_parsed_serve_args": ("vllm.entrypoints.launchers.cli_args", "validate_parsed_serve_args"),
    "ServeSubcommand": ("vllm.entrypoints.cli.serve", "ServeSubcommand"),
    "AuthenticationMiddleware": (
        "vllm.entrypoints.serve.middleware.authenticate",
        "AuthenticationMiddleware",
    ),
    "validate_json_request": ("vllm.entrypoints.serve.utils.api_utils", "validate_json_request"),
    "with_cancellation": ("vllm.entrypoints.serve.utils.api_utils", "with_cancellation"),
    "load_aware_call": ("vllm.entrypoints.serve.utils.api_utils", "load_aware_call"),
    "EmbeddingCompletionRequest": (
        "vllm.entrypoints.pooling.embed.protocol",
        "EmbeddingCompletionRequest",
    ),
    "EmbeddingRequest": ("vllm.entrypoints.pooling.embed.protocol", "EmbeddingRequest"),
    "reject_removed_pooling_parameters": (
        "vllm.entrypoints.pooling.base.protocol",
        "reject_removed_pooling_parameters",
    ),
    "ServingEmbedding": ("vllm.entrypoints.pooling.embed.serving", "ServingEmbedding"),
    "TokenEmbedIOProcessor": ("vllm.entrypoints.pooling.embed.io_processor", "TokenEmbedIOProcessor"),
    "ServingPooling": ("vllm.entrypoints.pooling.pooling.serving", "ServingPooling"),
    "ServingScores": ("vllm.entrypoints.pooling.scoring.serving", "ServingScores"),
    "ScoringIOProcessors": ("vllm.entrypoints.pooling.scoring.io_processor", "ScoringIOProcessors"),
    "InputProcessor": ("vllm.v1.engine.input_processor", "InputProcessor"),
    "EngineCore": ("vllm.v1.engine.core", "EngineCore"),
    "get_pp_group": ("vllm.distributed.parallel_state", "get_pp_group"),
    "SpinCondition": ("vllm.distributed.device_communicators.shm_broadcast", "SpinCondition"),
    "FullAttentionSpec": ("vllm.v1.kv_cache_interface", "FullAttentionSpec"),
    "Request": ("vllm.v1.request", "Request"),
    "RequestStatus": ("vllm.v1.request", "RequestStatus"),
    "RequestQueue": ("vllm.v1.core.sched.request_queue", "RequestQueue"),
    "SchedulingPolicy": ("vllm.v1.core.sched.request_queue", "SchedulingPolicy"),
    "PauseState": ("vllm.v1.core.sched.scheduler", "PauseState"),
    "Scheduler": ("vllm.v1.core.sched.scheduler", "Scheduler"),
    "AsyncScheduler": ("vllm.v1.core.sched.async_scheduler", "AsyncScheduler"),
    "SchedulerOutput": ("vllm.v1.core.sched.output", "SchedulerOutput"),
    "CPUWorker": ("vllm.v1.worker.cpu_worker", "CPUWorker"),
    "GPUWorker": ("vllm.v1.worker.gpu_worker", "Worker"),
    "InputBatch": ("vllm.v1.worker.gpu_input_batch", "InputBatch"),
    "GPUModelRunner": ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner"),
    "CPUAttentionMetadataBuilder": ("vllm.v1.attention.backends.cpu_attn", "CPUAttentionMetadataBuilder"),
    "CommonAttentionMetadata": ("vllm.v1.attention.backend", "CommonAttentionMetadata"),
    "CPUModelRunner": ("vllm.v1.worker.cpu_model_runner", "CPUModelRunner"),
    "get_layers_from_vllm_config": ("vllm.config", "get_layers_from_vllm_config"),
    "Attention": ("vllm.model_executor.layers.attention", "Attention"),
    "ModelRunnerOutput": ("vllm.v1.outputs", "ModelRunnerOutput"),
    "AsyncModelRunnerOutput": ("vllm.v1.outputs", "AsyncModelRunnerOutput"),
    "AsyncLLMEngine": ("vllm", "AsyncLLMEngine"),
    "VLLMError": ("vllm.exceptions", "VLLMError"),
    "RequestOutputKind": ("vllm.sampling_params", "RequestOutputKind"),
    "ChatParams": ("vllm.renderers", "ChatParams"),
    "ChatCompletionMessageParam": ("vllm.renderers.chat_utils", "ChatCompletionMessageParam"),
    "cached_tokenizer_from_config": ("vllm.tokenizers", "cached_tokenizer_from_config"),
    "maybe_make_thread_pool": ("vllm.tokenizers", "maybe_make_thread_pool"),
    "SamplingMetadata": ("vllm.v1.sample.metadata", "SamplingMetadata"),
    "CachedRequestState": ("vllm.v1.worker.gpu_input_batch", "CachedRequestState"),
    "ModelConfig": ("vllm.config", "ModelConfig"),
    "dispatch_cpu_unquantized_gemm": ("vllm.model_executor.layers.utils", "dispatch_cpu_unquantized_gemm"),
    "LoRAMapping": ("vllm.lora.layers", "LoRAMapping"),
    "PunicaWrapperCPU": ("vllm.lora.punica_wrapper.punica_cpu", "PunicaWrapperCPU"),
    "CpuPlatform": ("vllm.platforms.cpu", "CpuPlatform"),
    "SchedulerConfig": ("vllm.config", "SchedulerConfig"),
}


class IncompatibleVllmError(RuntimeError):
    """The installed vLLM is not one that this Orthrus was written against."""


def __getattr__(name: str) -> Any:
    try:
        module, attribute = SEAM[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    try:
        value = getattr(importlib.import_module(module), attribute)
    except AttributeError as error:
        raise IncompatibleVllmError(
            f"vLLM {vllm_version()} has no {module}.{attribute}; Orthrus supports vLLM {SUPPORTED_VLLM}. "
            f"Install that version, or an Orthrus written for yours."
        ) from error
    globals()[name] = value
    return value


def vllm_version() -> str:
    """The version that the vllm module itself reports (distribution names differ between builds)."""
    import vllm

    return str(vllm.__version__)


def check_version() -> None:
    """Raise IncompatibleVllmError unless the installed vLLM is the supported release (any local build)."""
    found = vllm_version()
    if found.split("+")[0] != SUPPORTED_VLLM:
        raise IncompatibleVllmError(
            f"Orthrus supports vLLM {SUPPORTED_VLLM}, but {found} is installed. "
            f"Install it with: pip install 'vllm-orthrus[cuda]' (GPU) or 'vllm-orthrus[cpu]' (CPU)."
        )
