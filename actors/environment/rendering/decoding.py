"""Text out of a stream of tokens, never half a character. For watching a generation; the record is always the ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_HALF = "\N{REPLACEMENT CHARACTER}"


class IncrementalDecoder:
    """`decode` maps ids to text. The texts that `push` and `finish` return, joined, are `decode` of all the ids."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._emitted = ""
        self._window = 0
        """First token of the decoded window: some context, since some tokenizers join words by their neighbours."""
        self._read = 0

    def push(self, token_id: int) -> str:
        """The text that became certain with this token: "" while a character is incomplete."""
        self._ids.append(int(token_id))
        before = self._decode(self._ids[self._window : self._read])
        now = self._decode(self._ids[self._window :])
        if now.endswith(_HALF) or len(now) <= len(before):
            return ""
        self._window, self._read = self._read, len(self._ids)
        text = now[len(before) :]
        self._emitted += text
        return text

    def finish(self) -> str:
        """What was held back: the remains of a character that never became whole."""
        rest = self._decode(self._ids)[len(self._emitted) :]
        self._emitted += rest
        return rest
