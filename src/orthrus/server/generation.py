"""What a request to a route of vLLM's own may contain: pure checks of the JSON body, cheap on long texts.

They say what vLLM says late, with status 500, or without naming the field. The rest is left to vLLM.
"""

from __future__ import annotations

from typing import Any

from orthrus.server.chat_parts import check_chat_parts, check_messages
from orthrus.server.checks import EmbeddingLimits
from orthrus.server.dead_ends import check_output_format
from orthrus.server.errors import RequestError, is_int, short
from orthrus.server.inputs import check_count, check_token_ids
from orthrus.server.media import refuse_files, refuse_media
from orthrus.server.responses_input import check_responses_input
from orthrus.server.values import INT64_MAX, check_values

RESPONSES = "/v1/responses"
ANTHROPIC = "/v1/messages"  # and what lies below it: parts of other types
# Lists of whole requests, each of them work of its own.
LISTED = {"/generative_scoring": ("items",), "/v1/chat/completions/batch": ("messages",)}
SHAPES: dict[str, tuple[type, str]] = {
    "messages": (list, "a list of messages"),
    "tools": (list, "a list of tools"),
    "structured_outputs": (dict, "an object"),
    "response_format": (dict, "an object"),
}


def check_generation(body: dict[str, Any], limits: EmbeddingLimits, path: str) -> None:
    """Check the body of a request to `path`. Raises RequestError."""
    # The cheapest first: the others look at every part of the body.
    if path == RESPONSES:
        check_responses_input(body.get("input"))
    for field in LISTED.get(path, ()):
        if isinstance(body.get(field), list):
            check_count(body[field], field, limits)
    _check_shapes(body)
    chats = _check_messages(body)
    check_values(body)
    if limits.text_only:
        refuse_media(body)
        refuse_files(body, "images", "audio", "videos")
    if not path.startswith(ANTHROPIC):
        for chat, where in chats:
            for i, message in enumerate(chat):
                check_chat_parts(message, f"{where}[{i}]", text_only=limits.text_only)
    _check_counts(body)
    _check_prompt(body, limits)
    for field in ("tokens", "token_ids"):
        if isinstance(body.get(field), list):
            check_token_ids(body[field], field, field, limits)
    _check_logit_bias(body)
    check_output_format(body)


def _check_shapes(body: dict[str, Any]) -> None:
    """Fields of which vLLM takes the shape for granted; null is as good as absent, but for `messages`."""
    for field, (shape, allowed) in SHAPES.items():
        value = body.get(field)
        is_missing = value is None and (field != "messages" or field not in body or "prompt" in body)
        if not is_missing and not isinstance(value, shape):
            raise RequestError(f"{field} is {short(value)}; allowed: {allowed}", field)


def _check_messages(body: dict[str, Any]) -> list[tuple[list[Any], str]]:
    """Check every message's shape. Returns the chats, each with its place."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return []
    chats = [(messages, "messages")]
    if messages and isinstance(messages[0], list):  # several chats in one request
        chats = [(chat, f"messages[{i}]") for i, chat in enumerate(messages) if isinstance(chat, list)]
    for chat, where in chats:
        if not chat:
            raise RequestError(f"{where} is an empty list; give at least one message", where)
        check_messages(chat, where)
    return chats


def _check_counts(body: dict[str, Any]) -> None:
    """Numbers that vLLM takes from its models, and then names by another field or by none."""
    if is_int(body.get("truncate_prompt_tokens")) and body["truncate_prompt_tokens"] == 0:
        allowed = "1 or more, or -1 for the model's limit"
        raise RequestError(f"truncate_prompt_tokens is 0; allowed: {allowed}", "truncate_prompt_tokens")
    most = body.get("max_output_tokens")
    if isinstance(most, int) and is_int(most) and most < 1:
        raise RequestError(f"max_output_tokens is {most}; allowed: 1 or more", "max_output_tokens")


def _check_prompt(body: dict[str, Any], limits: EmbeddingLimits) -> None:
    """Token ids are whole numbers of the vocabulary; pydantic would read true as 1."""
    prompt = body.get("prompt")
    if not isinstance(prompt, list):
        return
    if not prompt:
        if body.get("prompt_embeds") is None:
            raise RequestError("prompt is an empty list; give at least one text or token id", "prompt")
        return
    if isinstance(prompt[0], str):
        return
    if not isinstance(prompt[0], list):
        check_token_ids(prompt, "prompt", "prompt", limits)
        return
    for i, ids in enumerate(prompt):
        where = f"prompt[{i}]"
        if not isinstance(ids, list) or not ids:
            raise RequestError(f"{where} is {short(ids)}; allowed: a list of token ids, not empty", where)
        check_token_ids(ids, where, where, limits)


def _check_logit_bias(body: dict[str, Any]) -> None:
    bias = body.get("logit_bias")
    if not isinstance(bias, dict):
        return
    for key in bias:
        if not (key.isascii() and key.isdigit() and len(key) < 20 and int(key) <= INT64_MAX):
            raise RequestError(
                f"logit_bias has the key {short(key)}; its keys are token ids, as digits", "logit_bias"
            )
