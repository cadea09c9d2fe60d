"""What a checkpoint's or adapter's own sentence-transformers files ask of the pooling."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from orthrus.engine import compat
from orthrus.pooling.errors import PoolingConfigError
from orthrus.pooling.heads import Head
from orthrus.pooling.select import PoolingRecipe, read_recipe

if TYPE_CHECKING:
    from orthrus.engine.compat import ModelConfig

MODULES = "modules.json"
HUB_FILES = (MODULES, "*_Pooling/*", "*_Dense/*", "*_Normalize/*")


def folder_of(model: ModelConfig) -> Path | None:
    """The local folder of the checkpoint's sentence-transformers files; None where it has none.

    For a Hugging Face id only these small files are fetched (from the cache where vLLM runs offline).
    """
    if not compat.file_or_path_exists(model.model, MODULES, model.revision):
        return None
    local = Path(model.model)
    if local.is_dir():
        return local
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            model.model, revision=model.revision, allow_patterns=list(HUB_FILES), token=model.hf_token
        )
    )


@cache
def recipe_in(folder: str) -> PoolingRecipe | None:
    """`read_recipe`, once a process: workers, scheduler and front end ask for the same folders."""
    return read_recipe(Path(folder))


def check_width(recipe: PoolingRecipe, hidden_size: int, folder: Path) -> None:
    """Raise PoolingConfigError where the files were written for hidden states of another width."""
    width = recipe.dense[0].in_features if recipe.dense else recipe.width
    if width is not None and width != hidden_size:
        raise PoolingConfigError(
            f"{folder}: its sentence-transformers files expect vectors of {width}, "
            f"the model gives {hidden_size}"
        )


def adapter_head(folder: str) -> Head | None:
    """The head that an adapter's own files ask for; None where it brings none.

    Raises PoolingConfigError where they hold Dense layers: those belong to one request of a batch only.
    """
    recipe = recipe_in(folder)
    if recipe is None:
        return None
    if recipe.dense:
        raise PoolingConfigError(f"{folder}: Dense layers in an adapter's files are not supported")
    return recipe.head
