"""The scheduler's count of the pooling buffer, so that no request starts that the workers cannot hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from orthrus.engine.embedding import EmbeddingSpec
from orthrus.pooling.buffered import pages
from orthrus.pooling.heads import Head

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orthrus.engine.compat import Request
    from orthrus.engine.config import OrthrusConfig


class BufferRoom:
    """Free pages of the buffer in one step, counted from the running requests.

    A request holds the pages of its whole prompt while it runs. The workers free them no later than this
    count does, because they hear of finished and preempted requests before they start new ones.
    """

    def __init__(self, config: OrthrusConfig, running: Iterable[Request]) -> None:
        self._config = config
        self._running = running
        self._free: int | None = None

    def take(self, request: Request) -> bool:
        """Take the pages of `request`, if it needs any; False where they are not free."""
        needed = self._pages(request)
        if not needed:
            return True
        if self._free is None:
            held = sum(self._pages(running) for running in self._running)
            self._free = pages(self._config.pooling_buffer_tokens) - held
        if needed > self._free:
            return False
        self._free -= needed
        return True

    def _pages(self, request: Request) -> int:
        if request.pooling_params is None:
            return 0
        spec = EmbeddingSpec.of(request.pooling_params, self._config)
        return pages(request.num_prompt_tokens) if spec.head is Head.BUFFERED else 0
