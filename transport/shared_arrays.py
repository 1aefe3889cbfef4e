"""What one link shares: the memory that we fill, once the peer has said that it maps it, and the peer's, which we read.

Called by `Link` and `Links`. Where either end has no shared memory, or cannot reach the other's, arrays travel in
frames as they would without it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from headrace.transport.blocks import Locator, Place, ReceiveBlocks, SendBlocks
from headrace.transport.errors import CorruptFrame
from headrace.transport.network import Frame

logger = logging.getLogger(__name__)


class SharedArrays:
    """`capacity_bytes`: of our memory; 0: there is none, and the peer's is not mapped. `offer` tells the peer of it, on
    the lane on which its places will follow; `answer` whether we map the peer's."""

    def __init__(
        self,
        own: str,
        peer: str,
        capacity_bytes: int,
        *,
        offer: Callable[[int, Locator], None],
        answer: Callable[[int, bool], None],
    ) -> None:
        self._own = own
        self._peer = peer
        self._capacity_bytes = capacity_bytes
        self._offer = offer
        self._answer = answer
        self._number = 0
        self._out: SendBlocks | None = None
        self._is_mapped = False
        self._in: ReceiveBlocks | None = None
        self._in_number = 0

    # --- ours ---------------------------------------------------------------------------------------------------------

    def place(self, frames: Sequence[Frame]) -> Place | None:
        """Where the arrays of one message lie now; None where they must travel in frames."""
        if self._is_mapped:
            assert self._out is not None
            return self._out.put(frames)
        if self._out is None and self._capacity_bytes:
            try:
                self._out = SendBlocks(self._own, self._capacity_bytes)
            except OSError as error:
                logger.warning("no shared memory for arrays to %s (%s): they travel in frames", self._peer, error)
                self._capacity_bytes = 0
                return None
            self._number += 1
            self._offer(self._number, self._out.locator)
        return None

    def answered(self, number: int, is_mapped: bool) -> None:
        if number != self._number or self._out is None:
            return
        if is_mapped:
            self._is_mapped = True
            self._out.mapped()
        else:
            self._drop_ours()
            self._capacity_bytes = 0

    def renew(self) -> None:
        """Messages were lost, perhaps with the offer or the answer: new memory is offered with the next arrays, and the
        peer hears our answer again."""
        self._drop_ours()
        if self._in is not None:
            self._answer(self._in_number, True)

    def _drop_ours(self) -> None:
        blocks, self._out, self._is_mapped = self._out, None, False
        if blocks is not None:
            blocks.close()

    # --- the peer's --------------------------------------------------------------------------------------------------

    def offered(self, number: int, locator: Locator) -> None:
        """Raises CorruptFrame where that is not the peer's memory."""
        self._in = None
        if self._capacity_bytes:
            try:
                self._in = ReceiveBlocks(self._peer, locator)
                self._in_number = number
            except OSError as error:  # another user's, another container's, or closed already
                logger.info("the memory that %s offers for arrays cannot be mapped: %s", self._peer, error)
            except CorruptFrame:  # or where another container counts its processes anew
                self._answer(number, False)
                raise
        self._answer(number, self._in is not None)

    def take(self, place: Sequence[Any]) -> list[Frame]:
        """The arrays of one message: read-only views. Raises CorruptFrame."""
        if self._in is None:
            raise CorruptFrame(f"{self._peer} shares no memory with us")
        return self._in.take(place)

    def close(self) -> None:
        self._drop_ours()
        self._in = None  # the mapping ends with the last view of it
