"""Text to token ids and back, with GenAI's tokenizer of the exported model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orthrus.bench.peers.openvino.extra import load


class Text:
    """The tokenizer. `vocabulary` is the number of token ids."""

    def __init__(self, folder: Path) -> None:
        """`folder` holds openvino_tokenizer.xml and openvino_detokenizer.xml."""
        self._genai = load("openvino_genai")
        self._tokenizer = self._genai.Tokenizer(str(folder))
        self.vocabulary = len(self._tokenizer.get_vocab())

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, with the special tokens that the tokenizer adds."""
        ids: list[int] = self._tokenizer.encode(text).input_ids.data[0].tolist()
        return ids

    def stream(self) -> Stream:
        """A decoder of one generation."""
        return Stream(self._genai, self._tokenizer)


class Stream:
    """Tokens in, whole characters out; a character may need several tokens."""

    def __init__(self, genai: Any, tokenizer: Any) -> None:
        self._ready: list[str] = []
        self._running = genai.StreamingStatus.RUNNING
        self._streamer = genai.TextStreamer(tokenizer, self._take)

    def _take(self, text: str) -> Any:
        self._ready.append(text)
        return self._running

    def write(self, ids: Sequence[int]) -> str:
        """Take token ids; returns the text that is certain by now, which may be empty."""
        for token in ids:
            self._streamer.write(token)
        return self._released()

    def end(self) -> str:
        """The rest of the text."""
        self._streamer.end()
        return self._released()

    def _released(self) -> str:
        text = "".join(self._ready)
        self._ready.clear()
        return text
