"""The `vllm.endpoint_plugins` entry point: our routes inside vLLM's own server."""

from __future__ import annotations

import os
from argparse import Namespace
from typing import Any

from fastapi import FastAPI

from orthrus.engine.config import is_requested
from orthrus.server.state import state_router


def api_keys(args: Namespace) -> tuple[str, ...]:
    """The accepted keys: those of --api-key, else of VLLM_API_KEY, as vLLM reads them."""
    return tuple(key for key in (args.api_key or [os.environ.get("VLLM_API_KEY")]) if key)


class OrthrusEndpoints:
    """vLLM calls `attach_router` while it builds the app and `init_state` once the engine runs."""

    name = "orthrus"
    required_tasks = ("embed",)

    def attach_router(self, app: FastAPI) -> None:
        args = app.state.args
        if not is_requested(args.additional_config):
            return
        from orthrus.server.embeddings import router
        from orthrus.server.guard import Guard
        from orthrus.server.routes import check_first
        from orthrus.server.shutdown import why_unavailable

        app.add_middleware(
            Guard,
            keys=api_keys(args),
            max_body_bytes=args.max_request_bytes,
            max_requests=args.max_open_requests,
            unavailable=lambda: why_unavailable(getattr(app.state, "orthrus_engine", None), args),
        )
        check_first(app)
        app.include_router(router)
        app.include_router(state_router)
        self._app = app

    async def init_state(self, engine_client: Any, app_state: Any, args: Namespace) -> None:
        if engine_client is None or not is_requested(args.additional_config):
            return
        from orthrus.server.embeddings import (
            MixedServingEmbedding,
            honour_pooling_field,
            limits_of,
            tokenize_for_shapes,
        )
        from orthrus.server.handlers import install
        from orthrus.server.lengths import name_inputs, name_prompts
        from orthrus.server.shutdown import watch
        from orthrus.server.tokens import MixedServingPooling, MixedServingScores
        from orthrus.server.truncation import keeping_beginnings, use_renderer

        stock = app_state.serving_embedding
        handler = {"request_logger": stock.request_logger, "chat_template_config": stock.chat_template_config}
        models, tasks = app_state.openai_serving_models, await engine_client.get_supported_tasks()
        limits = app_state.orthrus_limits = limits_of(engine_client.vllm_config, args.max_embedding_inputs)
        app_state.serving_embedding = MixedServingEmbedding(engine_client, models, limits=limits, **handler)
        tokenize_for_shapes(app_state.serving_embedding.io_processor)
        app_state.serving_pooling = MixedServingPooling(
            engine_client, models, supported_tasks=tasks, **handler
        )
        app_state.serving_scores = MixedServingScores(engine_client, models, supported_tasks=tasks, **handler)
        renderer = keeping_beginnings(engine_client.renderer)
        for processor in (
            app_state.serving_embedding.io_processor,
            *app_state.serving_pooling.io_processors.values(),
            *app_state.serving_scores.io_processors.values(),
        ):
            use_renderer(processor, renderer)
            honour_pooling_field(processor)
        for processor in (
            app_state.serving_embedding.io_processor,
            *app_state.serving_pooling.io_processors.values(),
        ):
            name_inputs(processor, limits.max_model_len)
        name_prompts(app_state.online_renderer, limits.max_model_len)
        app_state.orthrus_engine = engine_client
        watch(engine_client, self._app, args)
        install(self._app, engine_client, args)
