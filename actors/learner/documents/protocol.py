"""What a document is, what a source of documents is, and what it means that one can be resumed. No code that reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class TokenDocument:
    """Tokens as a model sampled or saw them, never to be tokenised again.

    token_ids: int32[T]
    loss_mask: bool[T], the tokens that are trained
    """

    token_ids: np.ndarray
    loss_mask: np.ndarray


Document = str | dict[str, Any] | TokenDocument
"""A text (`pretrain`); a conversation as a JSON object (`sft`); tokens (both)."""


class DocumentSource(Protocol):
    def documents(self, seed: int) -> Iterator[Document]:
        """An endless sequence; the same seed gives the same sequence in every process. Where what is returned is a
        DocumentCursor, it is resumed by its own state; else by passing over what was given."""


@runtime_checkable
class DocumentCursor(Protocol):
    """The sequence, with its place. `state_dict` is JSON; after `load_state_dict` on a fresh cursor of the same source
    and seed come exactly those documents that had not been given. A changed source begins anew, with a warning."""

    def __iter__(self) -> Iterator[Document]: ...

    def __next__(self) -> Document: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
