"""Which head a request gets: sentence-transformers files, then the command line, then the request.

Reads JSON from local folders only; the caller resolves a remote id to its local snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orthrus.pooling.errors import PoolingConfigError
from orthrus.pooling.heads import Head

_OWNER = "sentence_transformers."
_HEAD_OF_MODE = {
    "mean": Head.MEAN,
    "weightedmean": Head.WEIGHTED_MEAN,
    "cls": Head.CLS,
    "lasttoken": Head.LAST,
}
_MODE_OF_FLAG = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True, slots=True)
class DenseSpec:
    """One projection layer: its folder (weights beside config.json), sizes and dotted activation."""

    path: Path
    in_features: int
    out_features: int
    bias: bool
    activation: str
    residual: bool


@dataclass(frozen=True, slots=True)
class PoolingRecipe:
    """What a checkpoint or adapter folder asks for after the model.

    `width` is the pooled vector's (None where the files do not say); `dense` is in order of application.
    """

    head: Head
    width: int | None
    dense: tuple[DenseSpec, ...]
    normalize: bool


def read_recipe(folder: Path) -> PoolingRecipe | None:
    """The recipe in `folder`'s modules.json, or None where it has none.

    Raises PoolingConfigError, naming the file, for what cannot be served: several or unknown modes, max,
    include_prompt false, other modules, another order than Pooling, Dense ..., Normalize.
    """
    modules_file = folder / "modules.json"
    if not modules_file.is_file():
        return None
    modules = _read_json(modules_file, list)
    pooling: tuple[Head, int | None] | None = None
    dense: list[DenseSpec] = []
    normalize = False
    for module in modules:
        if not isinstance(module, dict) or not isinstance(module.get("type"), str):
            raise PoolingConfigError(f"{modules_file}: each module needs a 'type', got {module!r}")
        kind = module["type"].rpartition(".")[2]
        if kind == "Transformer" and pooling is None:
            continue
        if not module["type"].startswith(_OWNER) or kind not in ("Pooling", "Dense", "Normalize"):
            raise PoolingConfigError(
                f"{modules_file}: module {module['type']!r} is not supported here: "
                "allowed are Transformer, then Pooling, then Dense layers, then Normalize"
            )
        if (kind == "Pooling") is not (pooling is None) or (kind == "Dense" and normalize):
            raise PoolingConfigError(
                f"{modules_file}: {kind} stands in the wrong place: "
                "the order must be Transformer, one Pooling, Dense layers, Normalize"
            )
        if kind == "Normalize":
            normalize = True
            continue
        config_file = _inside(folder, module.get("path", ""), modules_file) / "config.json"
        config = _read_json(config_file, dict)
        if kind == "Pooling":
            pooling = _pooling(config, config_file)
        else:
            dense.append(_dense(config, config_file))
    if pooling is None:
        raise PoolingConfigError(f"{modules_file}: there is no Pooling module")
    head, width = pooling
    _check_chain(width, dense)
    return PoolingRecipe(head, width, tuple(dense), normalize)


def choose_head(
    *,
    allowed: Collection[Head],
    checkpoint: Head | None = None,
    adapter: Head | None = None,
    command_line: Head | None = None,
    request: Head | str | None = None,
) -> Head:
    """The head of a request: request, else command line, else adapter, else checkpoint, else mean.

    Raises PoolingConfigError, naming where the head was asked for, where it is unknown or not in `allowed`.
    """
    asked = Head.parse(request) if request is not None else None
    sources = {
        "the request's 'pooling'": asked,
        "--pooling": command_line,
        "the adapter's files": adapter,
        "the checkpoint's files": checkpoint,
        "the default": Head.MEAN,
    }
    source, head = next((source, head) for source, head in sources.items() if head is not None)
    if head not in allowed:
        names = ", ".join(name for name in Head if name in allowed)
        raise PoolingConfigError(
            f"pooling head {head.value!r} ({source}) is not allowed here: allowed are {names}"
        )
    return head


def _pooling(config: dict[str, Any], file: Path) -> tuple[Head, int | None]:
    if config.get("include_prompt", True) is not True:
        raise PoolingConfigError(
            f"{file}: include_prompt is {config['include_prompt']!r}: "
            "leaving the instruction out of the pooling is not supported"
        )
    modes = config.get("pooling_mode")
    if modes is None:
        flags = {mode: config.get(flag, False) for flag, mode in _MODE_OF_FLAG.items()}
        if not all(isinstance(value, bool) for value in flags.values()):
            raise PoolingConfigError(f"{file}: pooling_mode_* must be true or false")
        # Neither schema: sentence-transformers' own default.
        modes = [mode for mode, on in flags.items() if on] or ["mean"]
    if isinstance(modes, str):
        modes = [modes]
    if not isinstance(modes, list) or len(modes) != 1:
        raise PoolingConfigError(f"{file}: exactly one pooling mode is supported, not {modes!r}")
    mode = modes[0]
    if not isinstance(mode, str) or mode not in _HEAD_OF_MODE:
        raise PoolingConfigError(
            f"{file}: pooling mode {mode!r} is not supported: allowed are {', '.join(_HEAD_OF_MODE)}"
        )
    key = "embedding_dimension" if "embedding_dimension" in config else "word_embedding_dimension"
    return _HEAD_OF_MODE[mode], _size(config, key, file) if key in config else None


def _dense(config: dict[str, Any], file: Path) -> DenseSpec:
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, "sentence_embedding"):
            raise PoolingConfigError(
                f"{file}: {key} {config[key]!r} is not supported: only 'sentence_embedding'"
            )
    activation = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    if not isinstance(activation, str):
        raise PoolingConfigError(f"{file}: activation_function must be a dotted name, not {activation!r}")
    return DenseSpec(
        path=file.parent,
        in_features=_size(config, "in_features", file),
        out_features=_size(config, "out_features", file),
        bias=_flag(config, "bias", True, file),
        activation=activation,
        residual=_flag(config, "use_residual", False, file),
    )


def _check_chain(width: int | None, dense: list[DenseSpec]) -> None:
    for layer in dense:
        if width is not None and layer.in_features != width:
            raise PoolingConfigError(
                f"{layer.path}: in_features is {layer.in_features}, but {width} come from the layer before"
            )
        width = layer.out_features


def _inside(folder: Path, path: object, file: Path) -> Path:
    if not isinstance(path, str) or Path(path).is_absolute() or ".." in Path(path).parts:
        raise PoolingConfigError(f"{file}: module path {path!r} must be a folder inside the checkpoint")
    return folder / path


def _read_json(file: Path, kind: type) -> Any:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PoolingConfigError(f"cannot read {file}: {error}") from error
    if not isinstance(content, kind):
        raise PoolingConfigError(f"{file}: expected a JSON {'array' if kind is list else 'object'}")
    return content


def _size(config: dict[str, Any], key: str, file: Path) -> int:
    value = config.get(key)
    if type(value) is not int or value < 1:
        raise PoolingConfigError(f"{file}: {key} must be a whole number of at least 1, not {value!r}")
    return value


def _flag(config: dict[str, Any], key: str, default: bool, file: Path) -> bool:
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise PoolingConfigError(f"{file}: {key} must be true or false, not {value!r}")
    return value
