"""The demo's requests, all made with the official openai client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count

import numpy as np
from numpy.typing import NDArray
from openai import AsyncOpenAI

from orthrus.demo.questions import CHAT_PROMPTS, EMBEDDING_PROMPT
from orthrus.demo.state import Chat, DemoState
from orthrus.retrieval.passages import Passage

BATCH = 16
BATCHES_IN_FLIGHT = 2
CHAT_TOKENS = 96


class DemoClient:
    """Embeddings and chats from one server, with progress written to a DemoState."""

    def __init__(self, url: str, model: str, state: DemoState) -> None:
        # No retries: a request that fails here means the demo has failed, and must say so.
        self._openai = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600)
        self._model = model
        self._state = state

    async def aclose(self) -> None:
        """Close the connections."""
        await self._openai.close()

    async def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The vectors [n, d] of `texts`, each put into the embedding prompt first."""
        prompts = [EMBEDDING_PROMPT.format(text=text) for text in texts]
        answer = await self._openai.embeddings.create(model=self._model, input=prompts)
        return np.array([item.embedding for item in answer.data], dtype=np.float32)

    async def embed_passages(self, passages: Sequence[Passage]) -> NDArray[np.float32]:
        """The vectors [n, d] of all passages, in batches, BATCHES_IN_FLIGHT requests at a time."""
        batches = [passages[i : i + BATCH] for i in range(0, len(passages), BATCH)]
        results: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(batches)
        queue = iter(range(len(batches)))

        async def worker(indices: Iterator[int]) -> None:
            for index in indices:
                results[index] = await self.embed([passage.content for passage in batches[index]])
                self._state.embedded += len(batches[index])

        workers = [asyncio.ensure_future(worker(queue)) for _ in range(BATCHES_IN_FLIGHT)]
        try:
            await asyncio.gather(*workers)
        finally:
            for task in workers:
                task.cancel()
        return np.concatenate(results)

    @asynccontextmanager
    async def chatting(self) -> AsyncIterator[None]:
        """Inside, every lane of the state streams one chat after another; leaving aborts what still runs."""
        prompts = (CHAT_PROMPTS[i % len(CHAT_PROMPTS)] for i in count())
        tasks = [asyncio.ensure_future(self._chat_lane(lane, prompts)) for lane in self._state.chats]
        try:
            yield
            # A lane never ends by itself: one that has ended has failed, and its error is the news.
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _chat_lane(self, lane: Chat, prompts: Iterator[str]) -> None:
        for prompt in prompts:
            lane.prompt, lane.answer = prompt, ""
            async for piece in self.stream(prompt, CHAT_TOKENS):
                lane.answer += piece
            lane.finished += 1

    async def stream(self, prompt: str, max_tokens: int) -> AsyncIterator[str]:
        """The pieces of a greedy answer as they come; their timing goes to the state."""
        sent = time.monotonic()
        last: float | None = None
        stream = await self._openai.chat.completions.create(
            model=self._model,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=max_tokens,
            temperature=0,
            stream=True,
        )
        async with stream:
            async for chunk in stream:
                piece = chunk.choices[0].delta.content if chunk.choices else None
                if not piece:
                    continue
                now = time.monotonic()
                if last is None:
                    self._state.first_tokens.append(now - sent)
                else:
                    self._state.gaps.append(now - last)
                last = now
                yield piece
