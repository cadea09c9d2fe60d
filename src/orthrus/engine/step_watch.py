"""The worker's side of a step that may be discarded: it looks out for an arriving generation."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from orthrus.engine.arrival_flag import open_flag
from orthrus.engine.compat import ModelRunnerOutput

if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterable, Mapping

    from orthrus.engine.arrival_flag import Address
    from orthrus.engine.batch import MixedInputBatch
    from orthrus.engine.compat import SchedulerOutput

logger = logging.getLogger("vllm.orthrus")

WATCHED = "orthrus_arrival_flag"
"""The attribute of a SchedulerOutput that names the flag of a step that may be discarded."""
DISCARDED = "orthrus_discarded"
"""The attribute of a ModelRunnerOutput whose step was discarded."""


class StepDiscardedError(Exception):
    """A generation has arrived, and the step that runs makes way for it."""


class StepWatch:
    """Ends a watched step once its flag is set, in the first half of the layers only.

    So no more work is lost than the generation would have waited for. A discarded step has written keys and
    values of its tokens for some layers and nothing else; computed again, they are written anew.
    """

    def __init__(self, attention_layers: Mapping[str, Any], linear_layers: Iterable[Any] = ()) -> None:
        """It looks before each of these layers.

        `attention_layers`: modules with vLLM's `impl`, in the order in which they run. `linear_layers`: those
        with vLLM's `cpu_linear`, in any order; none where a compiler takes them in, whose code cannot look.
        """
        self._flag: mmap.mmap | None = None
        self._opened: dict[Address, mmap.mmap | None] = {}
        middle = len(attention_layers) // 2
        for i, layer in enumerate(attention_layers.values()):
            if i < middle:
                layer.impl.forward = self._looked_before(layer.impl.forward)
            elif i == middle:
                layer.impl.forward = self._ended_before(layer.impl.forward)
        for layer in linear_layers:
            layer.cpu_linear = self._looked_before(layer.cpu_linear)

    def _looked_before(self, forward: Any) -> Any:
        def look_and_forward(*args: Any, **kwargs: Any) -> Any:
            if self._flag is not None and self._flag[0]:
                raise StepDiscardedError
            return forward(*args, **kwargs)

        return look_and_forward

    def _ended_before(self, forward: Any) -> Any:
        def end_and_forward(*args: Any, **kwargs: Any) -> Any:
            self._flag = None
            return forward(*args, **kwargs)

        return end_and_forward

    def begin(self, output: SchedulerOutput) -> None:
        """Watch the step of `output`, if it may be discarded."""
        address = getattr(output, WATCHED, None)
        if address is None:
            return
        if address not in self._opened:
            self._opened[address] = self._open(address)
        self._flag = self._opened[address]

    def end(self) -> None:
        self._flag = None

    def _open(self, address: Address) -> mmap.mmap | None:
        try:
            return open_flag(address)
        except OSError as error:
            logger.warning("Steps of embeddings make no way for a chat: the engine's flag: %s", error)
            return None


def discarded(batch: MixedInputBatch) -> ModelRunnerOutput:
    """The answer to a step that was discarded: no row of `batch` has a result."""
    output = ModelRunnerOutput(
        req_ids=batch.req_ids.copy(),
        req_id_to_index=batch.req_id_to_index.copy(),
        pooler_output=[None] * len(batch.req_ids),
    )
    setattr(output, DISCARDED, True)
    return output
