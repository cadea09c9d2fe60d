"""What `Engine`'s methods take, checked before anything runs and brought into vLLM's own types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from orthrus.engine.compat import ChatParams, PoolingParams, SamplingParams
from orthrus.engine.embedding import POOLING_KEY, TOKEN_TASK
from orthrus.server.checks import EmbeddingLimits, check_embedding
from orthrus.server.errors import RequestError
from orthrus.server.shapes import splits

Prompt = str | Sequence[int] | Mapping[str, Any]
Message = Mapping[str, Any]
Texts = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]
Span = Sequence[int]


class ChatOptions(TypedDict, total=False):
    """How a conversation becomes a prompt: a template in place of the checkpoint's, tools, its variables."""

    chat_template: str | None
    tools: list[dict[str, Any]] | None
    chat_template_kwargs: dict[str, Any] | None


class EmbedOptions(TypedDict, total=False):
    """What a call of `Engine.embed` may ask for beside its inputs: the fields of the server's requests."""

    pooling: str | None
    normalize: bool | None
    dimensions: int | None
    truncate_prompt_tokens: int | None
    spans: Sequence[Span] | Sequence[Sequence[Span]] | None
    span_unit: Literal["token", "char"] | None
    long_input: Literal["refuse", "split"] | None
    overlap: int | None


class TokenOptions(TypedDict, total=False):
    """What a call of `Engine.embed_tokens` may ask for beside its inputs."""

    normalize: bool | None
    dimensions: int | None
    truncate_prompt_tokens: int | None


@dataclass(frozen=True)
class Generation:
    """One generation before it is tokenised: `prompt` for a completion, `messages` and `chat` for a chat."""

    prompt: Mapping[str, Any] | None = None
    messages: Sequence[Message] | None = None
    chat: ChatParams | None = None


@dataclass(frozen=True)
class Embeddings:
    """The inputs of one call before they are tokenised, and what they share.

    `spans` holds a list of [start, end) for each input, in `span_unit`s; `splits` cuts what is longer than
    the model into windows that begin `overlap` tokens before the end of the one before.
    """

    prompts: list[dict[str, Any]]
    params: PoolingParams
    truncate_prompt_tokens: int | None = None
    spans: list[list[list[int]]] | None = None
    span_unit: str = "token"
    splits: bool = False
    overlap: int = 0


def completions(prompts: Any) -> list[Generation]:
    """One prompt or a list of them. Raises TypeError for anything else."""
    if isinstance(prompts, str | Mapping) or _is_token_ids(prompts):
        prompts = [prompts]
    if not isinstance(prompts, Sequence) or not prompts:
        raise TypeError(
            f"prompts is {prompts!r:.60}; allowed: a text, a list of token ids, a prompt dictionary, "
            f"or a list of them that is not empty"
        )
    return [Generation(prompt=_prompt(prompt, f"prompts[{i}]")) for i, prompt in enumerate(prompts)]


def conversations(
    messages: Any,
    *,
    chat_template: str | None = None,
    tools: list[dict[str, Any]] | None = None,
    chat_template_kwargs: dict[str, Any] | None = None,
) -> list[Generation]:
    """One conversation or a list of them. Raises TypeError for anything else."""
    kwargs = {"add_generation_prompt": True, "tools": tools, **(chat_template_kwargs or {})}
    chat = ChatParams(chat_template=chat_template, chat_template_kwargs=kwargs)
    if isinstance(messages, Sequence) and messages and isinstance(messages[0], Mapping):
        messages = [messages]
    if not isinstance(messages, list | tuple) or not messages:
        raise TypeError(f"messages is {messages!r:.60}; allowed: a list of messages, or a list of such lists")
    for i, conversation in enumerate(messages):
        if not isinstance(conversation, list | tuple) or not conversation:
            raise TypeError(
                f"messages[{i}] is {conversation!r:.60}; allowed: a message or a list of messages"
            )
        for message in conversation:
            if not isinstance(message, Mapping) or "role" not in message:
                raise TypeError(f"a message is {message!r:.60}; allowed: a dictionary with a 'role'")
    return [Generation(messages=conversation, chat=chat) for conversation in messages]


def sampling(given: Any, count: int, defaults: Mapping[str, Any]) -> list[SamplingParams]:
    """Sampling parameters for `count` inputs from one for all, one for each, or None for `defaults`.

    Raises TypeError or ValueError.
    """
    if given is None:
        given = SamplingParams.from_optional(**defaults)
    params = list(given) if isinstance(given, Sequence) else [given] * count
    if len(params) != count:
        raise ValueError(f"{len(params)} sampling_params for {count} inputs; give one, or as many as inputs")
    for one in params:
        if not isinstance(one, SamplingParams):
            raise TypeError(f"sampling_params is {one!r:.60}; allowed: vllm.SamplingParams")
    return params


def embeddings(inputs: Any, limits: EmbeddingLimits, options: EmbedOptions) -> Embeddings:
    """The inputs of an embedding call, by the same checks as the server's.

    Raises RequestError for bad values, TypeError for an option that does not exist.
    """
    _check_options(options, EmbedOptions)
    pooling = options.get("pooling")
    checked = _checked(inputs, limits, options)
    params = PoolingParams(
        task="embed",
        dimensions=checked.get("dimensions"),
        use_activation=checked.get("use_activation"),
        extra_kwargs={POOLING_KEY: pooling} if pooling is not None else None,
    )
    return Embeddings(
        _embedding_prompts(checked["input"]),
        params,
        checked.get("truncate_prompt_tokens"),
        spans=checked.get("spans"),
        span_unit=checked.get("span_unit", "token"),
        splits=splits(checked),
        overlap=checked.get("overlap", 0),
    )


def token_embeddings(inputs: Any, limits: EmbeddingLimits, options: TokenOptions) -> Embeddings:
    """The inputs of a call for one vector a token, checked alike. Raises as `embeddings`."""
    _check_options(options, TokenOptions)
    checked = _checked(inputs, limits, options)
    params = PoolingParams(
        task=TOKEN_TASK, dimensions=checked.get("dimensions"), use_activation=checked.get("use_activation")
    )
    return Embeddings(_embedding_prompts(checked["input"]), params, checked.get("truncate_prompt_tokens"))


def _check_options(options: Mapping[str, Any], allowed: Any) -> None:
    known = allowed.__annotations__
    for name in options:
        if name not in known:
            raise TypeError(f"there is no option {name!r}; allowed: {', '.join(known)}")


def _checked(inputs: Any, limits: EmbeddingLimits, options: Mapping[str, Any]) -> dict[str, Any]:
    listed = _listed(inputs)
    if isinstance(listed, list) and any(isinstance(item, Mapping) for item in listed):
        raise RequestError("input holds a dictionary; allowed: texts and lists of token ids", "input")
    return check_embedding({**options, "input": listed, "spans": _listed(options.get("spans"))}, limits)


def _embedding_prompts(listed: Any) -> list[dict[str, Any]]:
    items = [listed] if isinstance(listed, str) or _is_token_ids(listed) else listed
    return [_prompt(item, f"input[{i}]") for i, item in enumerate(items)]


def _is_token_ids(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], int)


def _prompt(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, str):
        return {"prompt": value}
    if _is_token_ids(value):
        return {"prompt_token_ids": list(value)}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{where} is {value!r:.60}; allowed: a text, a list of token ids, or a prompt dictionary")


def _listed(value: Any) -> Any:
    """Tuples as lists, which is what the checks of a JSON body know."""
    return [_listed(item) for item in value] if isinstance(value, list | tuple) else value
