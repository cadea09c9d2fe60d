"""The `vllm.general_plugins` entry point: it lets any vLLM engine be an Orthrus engine.

vLLM loads general plugins in every one of its processes. Ours wraps `EngineArgs.create_engine_config` and
two methods of the InputProcessor (`requests.py`) once; engines whose `additional_config` has no "orthrus"
key are left exactly as they are.
"""

from __future__ import annotations

import functools
from typing import Any

from orthrus.engine import config


def register() -> None:
    """Install the hooks. A no-op from the second call on."""
    from orthrus.engine import compat, requests

    requests.install()
    engine_args = compat.EngineArgs
    original = engine_args.create_engine_config
    if getattr(original, "_orthrus", False):
        return

    @functools.wraps(original)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not config.is_requested(self.additional_config):
            return original(self, *args, **kwargs)
        compat.check_version()
        config.choose_runner_generation()
        config.prepare(self)
        try:
            vllm_config = original(self, *args, **kwargs)
        except ValueError as error:
            if "--runner generate" in str(error):  # vLLM's advice would lead back to this error
                raise config.UnsupportedConfigError(config.EMBEDDING_ONLY) from error
            raise
        config.apply(vllm_config)
        return vllm_config

    create_engine_config._orthrus = True  # type: ignore[attr-defined]
    engine_args.create_engine_config = create_engine_config  # type: ignore[method-assign]
