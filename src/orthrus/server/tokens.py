"""Token-level output: `/pooling` with task token_embed, and MaxSim on the scoring routes."""

from __future__ import annotations

from typing import Any

import torch
from fastapi.responses import Response

from orthrus.engine.compat import (
    GenerationError,
    ScoringIOProcessors,
    ServingPooling,
    ServingScores,
    TokenEmbedIOProcessor,
    VLLMValidationError,
)
from orthrus.engine.embedding import TOKEN_TASK

NO_BUFFER = "token-level output is off; an operator turns it on with --pooling-buffer-tokens"


def refuse_nonfinite(results: Any, what: str, owners: list[int] | None = None) -> None:
    """Raise GenerationError (status 500) that names the first input whose result holds a NaN or infinity.

    A single NaN stands for a vector that could not be made (orthrus.engine.answers).
    """
    for i, result in enumerate(results):
        data = torch.as_tensor(result.outputs.data if hasattr(result.outputs, "data") else result.outputs)
        if not bool(torch.isfinite(data).all()):
            index = i if owners is None else owners[i]
            hint = "; if a pooling function failed, the server's log says why" if data.numel() == 1 else ""
            raise GenerationError(f"the {what} of input[{index}] is not finite (NaN or infinity){hint}")


class MixedServingPooling(ServingPooling):
    """vLLM's handler of /pooling (entrypoints/pooling/pooling/serving.py), which takes one task only."""

    def __init__(self, *args: Any, supported_tasks: tuple[str, ...], **kwargs: Any) -> None:
        super().__init__(*args, supported_tasks=supported_tasks, **kwargs)
        if TOKEN_TASK in supported_tasks:
            self.io_processors[TOKEN_TASK] = TokenEmbedIOProcessor(**_processor_arguments(self))

    def _verify_pooling_task(self, request: Any) -> str:
        if getattr(request, "task", None) != TOKEN_TASK:
            # vLLM refuses any `dimensions` here; ours have been checked, and the pooler takes them.
            dimensions = getattr(request, "dimensions", None)
            if dimensions is not None:
                request.dimensions = None
            task: str = super()._verify_pooling_task(request)
            if dimensions is not None:
                request.dimensions = dimensions
            return task
        if TOKEN_TASK not in self.supported_tasks:
            raise VLLMValidationError(NO_BUFFER, parameter="task")
        return TOKEN_TASK

    def _build_response(self, ctx: Any) -> Response:
        refuse_nonfinite(ctx.final_res_batch, "result")
        response: Response = super()._build_response(ctx)
        return response


class MixedServingScores(ServingScores):
    """vLLM's handler of /score and /rerank (entrypoints/pooling/scoring/serving.py) with two scorings.

    The request field `scoring` asks for "cosine" of the pooled vectors (the default) or for "maxsim": the sum
    over the query's tokens of the largest similarity to any token of the document.
    """

    def __init__(self, *args: Any, supported_tasks: tuple[str, ...], **kwargs: Any) -> None:
        super().__init__(*args, supported_tasks=supported_tasks, **kwargs)
        self.io_processors = {"cosine": self.io_processor}
        if TOKEN_TASK in supported_tasks:
            self.io_processors["maxsim"] = ScoringIOProcessors["late-interaction"](
                **_processor_arguments(self)
            )

    def get_io_processor(self, request: Any) -> Any:
        scoring = (request.model_extra or {}).get("scoring") or "cosine"
        if scoring not in self.io_processors:
            raise VLLMValidationError(NO_BUFFER, parameter="scoring")
        return self.io_processors[scoring]

    def _build_response(self, ctx: Any) -> Response:
        refuse_nonfinite(ctx.final_res_batch, "score")
        response: Response = super()._build_response(ctx)
        return response


def _processor_arguments(serving: Any) -> dict[str, Any]:
    names = ("vllm_config", "renderer", "chat_template_config")
    return {name: getattr(serving, name) for name in names}
