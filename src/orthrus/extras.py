"""Which optional dependency a missing module belongs to."""

from __future__ import annotations

from importlib import import_module

ENGINE = "cpu", "cuda"
EXTRAS: dict[str, tuple[str, ...]] = {
    "lancedb": ("retrieval",),
    "pyarrow": ("retrieval",),
    "matplotlib": ("bench",),
    **dict.fromkeys(
        ("vllm", "torch", "transformers", "safetensors", "tokenizers", "openai", "fastapi"), ENGINE
    ),
}
"""Module to the extras of pyproject.toml that install it: any one of them is enough."""


def advice(error: ModuleNotFoundError) -> str | None:
    """What to install so that the import works; None for a module that no extra brings."""
    extras = EXTRAS.get(error.name or "")
    if extras is None:
        return None
    commands = " or ".join(f"pip install 'vllm-orthrus[{extra}]'" for extra in extras)
    return f"{error.name} is not installed: {commands} (from a checkout: '.[{extras[0]}]')"


def require(module: str) -> None:
    """Import a module now, before work that would end without it; ModuleNotFoundError if it is missing."""
    import_module(module)
