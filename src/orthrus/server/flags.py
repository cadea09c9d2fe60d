"""The flags that `orthrus serve` adds to vLLM's, and how they become an engine's settings."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from orthrus.engine.config import KEY, OrthrusConfig
from orthrus.engine.step_size import CPU_PROMPT_TOKENS
from orthrus.policy.options import OptionError, PolicyOptions
from orthrus.policy.registry import POLICIES

POLICY_FLAGS: dict[str, tuple[type, str]] = {
    "embed_chunk": (int, "most tokens of one embedding per scheduling opportunity"),
    "prefill_chunk": (int, "most tokens of one prefill per scheduling opportunity; 0: no limit"),
    "embed_bias": (float, "weight of a waiting embedding token against a waiting prefill token"),
    "max_embed_share": (float, "upper bound on the embeddings' part of a step's token budget"),
    "ttft_target_s": (float, "time to first token to aim at, in seconds; 0: no target"),
}


def positive(text: str) -> int:
    """A whole number of at least 1, as an argparse type."""
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return value


def option(name: str, kind: type) -> Callable[[str], Any]:
    """A policy option as an argparse type, with the option's own range in the message."""

    def parse(text: str) -> Any:
        value = kind(text)
        try:
            PolicyOptions(**{name: value})
        except OptionError as error:
            raise argparse.ArgumentTypeError(f"{text} is not {error.allowed}") from error
        return value

    parse.__name__ = kind.__name__  # argparse names it when the text is no number at all
    return parse


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add Orthrus' own flags to vLLM's parser."""
    group = parser.add_argument_group("Orthrus", "Embeddings and generation in the same steps.")
    group.add_argument(
        "--policy", choices=sorted(POLICIES), default=OrthrusConfig().policy, help="batch policy"
    )
    heads = OrthrusConfig().allowed_pooling
    group.add_argument(
        "--pooling",
        choices=heads,
        default=argparse.SUPPRESS,
        help="pooling head of requests that name none (default: the checkpoint's, else mean)",
    )
    group.add_argument(
        "--matryoshka",
        action="store_true",
        help="let requests ask for fewer dimensions",
    )
    defaults = PolicyOptions()
    for name, (kind, text) in POLICY_FLAGS.items():
        flag = "--" + name.replace("_", "-")
        help_text = f"{text} (default: {getattr(defaults, name)})"
        group.add_argument(flag, type=option(name, kind), default=argparse.SUPPRESS, help=help_text)
    group.add_argument(
        "--count-decode", action="store_true", help="count expected decode tokens as generation work"
    )
    group.add_argument(
        "--embed-slots",
        type=int,
        default=argparse.SUPPRESS,
        help="rows of the batch for embeddings beyond --max-num-seqs (default: an eighth of it, at least 2)",
    )
    group.add_argument(
        "--mixed-step-tokens",
        type=int,
        default=argparse.SUPPRESS,
        help="most prompt tokens of a step beside generations; 0: no bound but --max-num-batched-tokens"
        f" (default: {CPU_PROMPT_TOKENS} with ibs on CPU, else 0)",
    )
    group.add_argument(
        "--itl-target-s",
        type=option("ttft_target_s", float),  # the same range
        default=OrthrusConfig().itl_target_s,
        help="inter-token latency to aim at beside embeddings, in seconds: shortens steps; 0: no target",
    )
    group.add_argument(
        "--batch-invariant",
        action="store_true",
        help="on CPU, in bfloat16: the same bits for a prompt whatever shares its steps, at slower attention "
        "(on a GPU set VLLM_BATCH_INVARIANT=1)",
    )
    group.add_argument(
        "--prefix-sums-mib",
        type=float,
        default=OrthrusConfig().prefix_sums_mib,
        help="memory for pooling states of cached prefixes, in MiB; 0 turns their reuse off",
    )
    group.add_argument(
        "--pooling-function",
        metavar="MODULE:FUNCTION",
        default=None,
        help="function of the 'buffered' head: all hidden states of a prompt [n, d] to a vector [m]",
    )
    group.add_argument(
        "--pooling-buffer-tokens",
        type=positive,
        default=None,
        help="tokens whose hidden states may be buffered at once; turns token-level output on",
    )
    group.add_argument(
        "--max-spans", type=positive, default=OrthrusConfig().max_spans, help="most spans of one input"
    )
    group.add_argument(
        "--trace-steps",
        metavar="FILE",
        default=None,
        help="write a JSON line a step to FILE, from its beginning",
    )
    group.add_argument(
        "--max-embedding-inputs", type=positive, default=2048, help="most inputs of one embeddings request"
    )
    group.add_argument("--max-request-bytes", type=positive, default=32 * 2**20, help="largest request body")
    group.add_argument(
        "--max-open-requests",
        type=positive,
        default=4096,
        help="open requests from which on the answer is 429",
    )
    group.add_argument(
        "--no-preload", action="store_true", help="do not preload libiomp5 and tcmalloc on the CPU backend"
    )


def settings(args: argparse.Namespace) -> dict[str, Any]:
    """`additional_config` for the parsed flags, with the user's own entries kept.

    Raises ValueError (pydantic's or PolicyOptions') for a value that is not allowed.
    """
    options = {name: value for name in POLICY_FLAGS if (value := getattr(args, name, None)) is not None}
    if args.count_decode:
        options["count_decode"] = True
    known = {field.name for field in fields(PolicyOptions)}
    assert options.keys() <= known
    if args.trace_steps is not None:
        try:
            Path(args.trace_steps).open("a").close()
        except OSError as error:
            raise ValueError(f"--trace-steps {args.trace_steps!r}: {error.strerror}") from error
    unset_by_default = ("pooling", "embed_slots", "mixed_step_tokens")
    given = {name: vars(args)[name] for name in unset_by_default if name in args}
    config = OrthrusConfig(
        **given,
        policy=args.policy,
        policy_options=options,
        matryoshka=args.matryoshka,
        itl_target_s=args.itl_target_s,
        batch_invariant=args.batch_invariant,
        prefix_sums_mib=args.prefix_sums_mib,
        pooling_function=args.pooling_function,
        pooling_buffer_tokens=args.pooling_buffer_tokens or 0,
        max_spans=args.max_spans,
        trace_steps=args.trace_steps,
    )
    return {**(args.additional_config or {}), KEY: config.model_dump(mode="json", exclude_defaults=True)}
