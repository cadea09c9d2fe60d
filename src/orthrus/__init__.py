"""One vLLM engine that generates and embeds in the same batches, from one copy of the weights."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orthrus.engine.api import Engine as Engine

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Importing vLLM takes seconds; `import orthrus` and the command line must not pay for it.
    if name == "Engine":
        from orthrus.engine.api import Engine

        return Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
