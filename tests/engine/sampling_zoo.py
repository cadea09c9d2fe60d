"""One request for every sampling option that vLLM keeps state for per row, for the engine tests."""

from __future__ import annotations

from typing import Any

import torch
from engine_driver import generate
from vllm import SamplingParams
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.sample.logits_processor import (
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
)

SAMPLED: dict[str, Any] = {"temperature": 0.9, "seed": 11}


class BanMultiples(LogitsProcessor):
    """A custom processor as a user would write one: `extra_args={"ban": k}` forbids every k-th token id.

    It keeps a tensor of the batch's size, so it fails loudly when it is told a wrong number of rows.
    """

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.divisors: dict[int, int] = {}
        self.rows = torch.zeros(0, dtype=torch.int64)

    @classmethod
    def validate_params(cls, params: SamplingParams) -> None:
        divisor = (params.extra_args or {}).get("ban")
        if divisor is not None and not isinstance(divisor, int):
            raise ValueError("ban must be an integer")

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for index in batch_update.removed:
            self.divisors.pop(index, None)
        for index, params, _, _ in batch_update.added:
            self.divisors.pop(index, None)
            if divisor := (params.extra_args or {}).get("ban"):
                self.divisors[index] = divisor
        for source, target, direction in batch_update.moved:
            moved, replaced = self.divisors.pop(source, None), self.divisors.pop(target, None)
            if moved is not None:
                self.divisors[target] = moved
            if replaced is not None and direction == MoveDirectionality.SWAP:
                self.divisors[source] = replaced
        self.rows = torch.zeros(batch_update.batch_size, 1, dtype=torch.int64)
        for index, divisor in self.divisors.items():
            self.rows[index] = divisor

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        assert len(logits) == len(self.rows), "the rows to sample are not the rows of the last update"
        ids = torch.arange(logits.shape[1])
        banned = (self.rows > 0) & (ids % self.rows.clamp(min=1) == 0)
        return logits.masked_fill_(banned, -float("inf"))


def zoo(max_tokens: int = 14) -> dict[str, SamplingParams]:
    """Sampling parameters by the option that they exercise."""

    def structured(**kwargs: Any) -> StructuredOutputsParams:
        return StructuredOutputsParams(**kwargs)

    options: dict[str, dict[str, Any]] = {
        "greedy": {},
        "seed": SAMPLED,
        "top_p": {**SAMPLED, "top_p": 0.8},
        "top_k": {**SAMPLED, "top_k": 7},
        "min_p": {**SAMPLED, "min_p": 0.05},
        "min_p_strong": {**SAMPLED, "min_p": 0.5},
        "repetition": {**SAMPLED, "repetition_penalty": 1.4},
        "presence": {"presence_penalty": 1.5},
        "frequency": {"frequency_penalty": 1.2, "repetition_penalty": 1.1},
        "logprobs": {"logprobs": 5},
        "logprobs_seeded": {**SAMPLED, "logprobs": 3},
        "logprob_ids": {"logprob_token_ids": [7, 9, 400], "logprobs": 3},
        "prompt_logprobs": {"prompt_logprobs": 2, "logprobs": 1},
        "logit_bias": {"logit_bias": {40: 30.0, 41: 28.0}},
        "bad_words": {"bad_words": ["w40", "w41"], "logit_bias": {40: 50.0, 42: 40.0}},
        "allowed": {**SAMPLED, "allowed_token_ids": list(range(30, 60))},
        "min_tokens": {"ignore_eos": False, "logit_bias": {2: 80.0}, "min_tokens": 6},
        "eos": {"ignore_eos": False, "logit_bias": {2: 80.0}},
        "stop_token": {"stop_token_ids": [77], "logit_bias": {77: 9.0}},
        "stop_string": {"stop": ["w77"], "logit_bias": {77: 9.0}},
        "n": {**SAMPLED, "n": 3},
        "choice": {"structured_outputs": structured(choice=["yes", "no"]), "ignore_eos": False},
        "regex": {"structured_outputs": structured(regex="[ab]{4}[012]{3}"), "ignore_eos": False},
        "json": {
            "structured_outputs": structured(
                json={
                    "type": "object",
                    "properties": {"a": {"enum": [0, 1, 2]}, "b": {"enum": ["a", "b"]}},
                    "required": ["a", "b"],
                    "additionalProperties": False,
                }
            ),
            "ignore_eos": False,
        },
        "custom": {"extra_args": {"ban": 3}},
        "custom_seeded": {**SAMPLED, "extra_args": {"ban": 2}, "min_p": 0.02},
    }
    return {name: generate(max_tokens, **kwargs) for name, kwargs in options.items()}
