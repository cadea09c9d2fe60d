"""Requests on their way into an Orthrus engine: the last check in the front end (`InputProcessor`).

vLLM refuses any prompt as long as the model's limit once the model generates, since nothing could be sampled
after it (v1/engine/input_processor.py, `_validate_prompt_len`). An embedding samples nothing, and stock
embedding servers take such a prompt. A pooling head that does not exist must be refused here as well: in the
scheduler's process the same error would end the engine.
"""

from __future__ import annotations

import functools
from typing import Any

from orthrus.engine import checkpoint, compat
from orthrus.engine.config import OrthrusConfig, is_requested
from orthrus.engine.embedding import POOLING_KEY, SPANS_KEY, check_extent, settle_head
from orthrus.pooling.errors import PoolingConfigError


def install() -> None:
    """Wrap vLLM's InputProcessor. A no-op from the second call on; engines without Orthrus see no change."""
    processor = compat.InputProcessor
    process, validate = processor.process_inputs, processor._validate_prompt_len
    if getattr(process, "_orthrus", False):
        return

    @functools.wraps(process)
    def process_inputs(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = process(self, *args, **kwargs)
        if is_requested(self.vllm_config.additional_config):
            if request.pooling_params is None:
                validate(self, _length(request), "decoder")
            else:
                _settle_head(request, OrthrusConfig.of(self.vllm_config))
        return request

    @functools.wraps(validate)
    def validate_prompt_len(self: Any, prompt_len: int, prompt_type: str) -> None:
        # Whether it is an embedding is not known here: a generation of this length is refused above.
        exact = prompt_type == "decoder" and prompt_len == self.model_config.max_model_len
        if not (exact and is_requested(self.vllm_config.additional_config)):
            validate(self, prompt_len, prompt_type)

    process_inputs._orthrus = True  # type: ignore[attr-defined]
    processor.process_inputs = process_inputs
    processor._validate_prompt_len = validate_prompt_len


def _length(request: Any) -> int:
    return len(request.prompt_token_ids if request.prompt_embeds is None else request.prompt_embeds)


def _settle_head(request: Any, config: OrthrusConfig) -> None:
    """Write the head into the request's own copy of its parameters: an adapter's files are read here only.

    Raises VLLMValidationError, which vLLM's server answers with 400.
    """
    params, adapter = request.pooling_params, request.lora_request
    field = POOLING_KEY
    try:
        wanted = checkpoint.adapter_head(adapter.lora_path) if adapter is not None else None
        settle_head(params, config, wanted)
        field = SPANS_KEY if (params.extra_kwargs or {}).get(SPANS_KEY) else "input"
        check_extent(params, _length(request), config)
    except PoolingConfigError as error:
        raise compat.VLLMValidationError(str(error), parameter=field) from error
