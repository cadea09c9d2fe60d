"""The command of a topology `command:...`: words with placeholders, turned into a process's arguments.

`{port}`, `{device}` (number of a core or GPU), `{dtype}` and `{model}` (the checkpoint's folder) are the
harness's; `${NAME}` is an environment variable, so that a spec names no path of one machine.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Mapping, Sequence

PLACEHOLDERS = ("port", "device", "dtype", "model")
BRACED = re.compile(r"(?<!\$)\{([a-z_]+)\}")
VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class PeerError(RuntimeError):
    """A peer's command cannot be run here; the message says what is missing."""


def check_template(template: str) -> None:
    """ValueError for an unclosed quote, an unknown placeholder, or no `{port}`."""
    names = [name for word in shlex.split(template) for name in BRACED.findall(word)]
    unknown = sorted(set(names) - set(PLACEHOLDERS))
    if unknown or "port" not in names:
        wrong = f"has unknown placeholders {unknown}" if unknown else "lacks {port}"
        known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
        raise ValueError(f"command {wrong}; placeholders: {known}; ${{NAME}} is an environment variable")


def filled(template: str, values: Mapping[str, str]) -> tuple[str, ...]:
    """The words of a template, split as a shell would, with `values` in place of their placeholders."""
    return tuple(BRACED.sub(lambda found: values[found[1]], word) for word in shlex.split(template))


def installed(command: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """The command with environment variables put in, its program found.

    PeerError names every variable that is not set, or the program that is not there.
    """
    unset = sorted({name for word in command for name in VARIABLE.findall(word)} - set(environment))
    if unset:
        raise PeerError(f"not set in the environment: {', '.join(unset)} (docs/benchmarking.md, Peers)")
    words = tuple(VARIABLE.sub(lambda found: environment[found[1]], word) for word in command)
    if shutil.which(words[0], path=environment.get("PATH")) is None:
        raise PeerError(f"{words[0]}: no such program (docs/benchmarking.md, Peers)")
    return words
