"""`orthrus`: one command with sub-commands, each imported only when it is called.

So `orthrus --help` imports neither torch nor vLLM and answers at once. A sub-command is a typer app, a
function with typer's annotations, or, where it parses its own arguments, a function of the list of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any

import orthrus
from orthrus import extras


@dataclass(frozen=True)
class Command:
    """One sub-command: where it is ("module:attribute") and its help in one sentence.

    `raw` marks a function that takes everything after the name as a list of strings, unparsed, and
    returns an exit status or None.
    """

    target: str
    help: str
    raw: bool = False

    def load(self) -> Any:
        """Import the module and return the attribute."""
        module, _, attribute = self.target.partition(":")
        return getattr(import_module(module), attribute)


COMMANDS: dict[str, Command] = {
    "serve": Command(
        "orthrus.server.command:main", "Serve a model: chat, completions and embeddings.", raw=True
    ),
    "demo": Command("orthrus.demo.command:demo", "Chat and embed at once with one engine, and watch it."),
    "bench": Command("orthrus.cli_bench:app", "Measure mixed workloads on topologies of real servers."),
    "simulate": Command("orthrus.cli_simulate:app", "Run simulations on the engine's scheduling policies."),
    "trace": Command("orthrus.cli_trace:app", "Read a step trace: figures and pictures."),
    "models": Command("orthrus.cli_models:app", "Fetch and find the sample models."),
    "doctor": Command("orthrus.cli_doctor:doctor", "Check this installation and say how to mend it."),
}


def usage() -> str:
    """What `orthrus --help` prints."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "Usage: orthrus COMMAND [ARGUMENTS]",
            "",
            "One vLLM engine that generates and embeds, in the same batches.",
            "",
            "Commands:",
            *lines,
            "",
            "Options:",
            "  --version  Print the version.",
            "  --help     Print this; after a command, print that command's help.",
            "",
        ]
    )


def run_with_typer(name: str, target: Any, arguments: list[str]) -> None:
    """Hand the arguments to a typer app, or to a function by way of an app of its own; ends the process."""
    import typer

    app = target
    if not isinstance(target, typer.Typer):
        function: Callable[..., Any] = target
        app = typer.Typer(add_completion=False)
        app.command()(function)
    app(args=arguments, prog_name=f"orthrus {name}")


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; ends with SystemExit. `argv` is what follows the program's name."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    name = arguments.pop(0) if arguments else "--help"
    if name in {"--help", "-h", "help"}:
        sys.stdout.write(usage())
        sys.exit(0)
    if name == "--version":
        sys.stdout.write(f"orthrus {orthrus.__version__}\n")
        sys.exit(0)
    if name not in COMMANDS:
        near = get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(COMMANDS)}"
        sys.stderr.write(f"orthrus: no command {name!r}; {hint} (orthrus --help)\n")
        sys.exit(2)
    command = COMMANDS[name]
    try:
        target = command.load()
        if command.raw:
            sys.exit(target(arguments))
        run_with_typer(name, target, arguments)
    except ModuleNotFoundError as error:
        advice = extras.advice(error)
        if advice is None:
            raise
        sys.stderr.write(f"orthrus {name}: {advice}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
