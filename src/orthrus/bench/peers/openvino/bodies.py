"""Bodies of the adapter's requests: what of OpenAI's API it has. Anything else is refused, never ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Ids = Annotated[list[Annotated[int, Field(ge=0, strict=True)]], Field(min_length=1)]
Prompt = Annotated[str, Field(min_length=1)] | Ids


class Body(BaseModel):
    """An object without unknown keys."""

    model_config = ConfigDict(extra="forbid")

    model: str


class StreamOptions(BaseModel):
    """Whether a last chunk counts the tokens."""

    model_config = ConfigDict(extra="forbid")

    include_usage: bool = False


class Completion(Body):
    """POST /v1/completions: one prompt, one answer. Temperature 0 is greedy."""

    prompt: Prompt
    max_tokens: int = Field(default=16, ge=1)
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int | None = None
    ignore_eos: bool = False
    n: Literal[1] = 1
    stream: bool = False
    stream_options: StreamOptions | None = None

    def settings(self) -> dict[str, Any]:
        """The same for GenAI's GenerationConfig."""
        settings: dict[str, Any] = {"max_new_tokens": self.max_tokens, "ignore_eos": self.ignore_eos}
        settings["do_sample"] = self.temperature > 0
        if self.temperature > 0:
            settings |= {"temperature": self.temperature, "top_p": self.top_p}
        if self.seed is not None:
            settings["rng_seed"] = self.seed
        return settings


class Embedding(Body):
    """POST /v1/embeddings: texts or token ids, one or many."""

    input: Prompt | Annotated[list[Prompt], Field(min_length=1)]
    encoding_format: Literal["float", "base64"] = "float"

    def inputs(self) -> list[str | list[int]]:
        """The inputs as a list, also when there is one only."""
        if isinstance(self.input, str):
            return [self.input]
        if isinstance(self.input[0], int):
            return [self.input]  # type: ignore[list-item]
        return self.input  # type: ignore[return-value]
