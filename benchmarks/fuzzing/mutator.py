"""Batches of every kind, damaged in ways that know the format. Pure: the same seed makes the same frames.

Damage comes at three levels: values before they are packed (extreme numbers, other types, depth, splices of other
envelopes), bytes after it (flips, cuts, repeats, declared lengths), and the frames of one message.
"""

from __future__ import annotations

import random
from typing import Any

import msgpack

Envelope = list[Any]

ASK = 1
"""the kind whose second value is a call id that must be new"""

EXTREMES: tuple[Any, ...] = (
    0, 1, -1, 255, 2**31, -(2**31), 2**63 - 1, -(2**63), 2**64 - 1, True, False, None, "", "x" * 300, "\0", b"", b"x",
    0.0, float("nan"), float("inf"), [], {}, [[]], {1: 2}, {"": None},
)  # fmt: skip
HEADERS = (
    b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff",
    b"\xdc\xff\xff", b"\xde\xff\xff", b"\xc9\x00\x00\x00\x04\x01abcd", b"\xc1", b"\x91" * 600, b"\xdd\x00\x10\x00\x00",
)  # fmt: skip


class Mutator:
    def __init__(self, seed: int, samples: list[tuple[Envelope, list[bytes]]]) -> None:
        """`samples`: envelopes that are sound, each with its array frames."""
        self._draw = random.Random(f"fuzz {seed}")
        self._samples = samples
        self._last = b""

    def message(self, header: list[Any], hello: Envelope) -> list[bytes]:
        """One network message; one in eight is sound. `header`: [magic, source, target, epoch, sequence]."""
        draw = self._draw
        num = 1 if draw.random() < 0.7 else draw.randrange(6)
        chosen = [draw.choice(self._samples) for _ in range(num)]
        envelopes = [self._copy(envelope) for envelope, _ in chosen]
        for envelope in envelopes:
            if envelope[0] == ASK and draw.random() < 0.8:
                envelope[1] = draw.getrandbits(30)  # a call of its own
        frames = list(chosen[-1][1]) if chosen else []
        batch: list[Any] = [*header, hello, *envelopes]
        way = draw.randrange(8)
        if way in (1, 2, 3):
            for _ in range(draw.randint(1, 3)):
                self._damage_values(batch)
        packed = self._pack(batch)
        if way in (4, 5):
            packed = self._damage_bytes(packed)
        if way == 6 or (way == 3 and draw.random() < 0.3):
            frames = self._damage_frames(frames)
        if way == 7:
            packed = draw.choice((packed[: draw.randrange(len(packed))], draw.randbytes(draw.randrange(200)), b""))
        self._last = packed
        return [packed, *frames]

    def _copy(self, value: Any, depth: int = 0) -> Any:
        """What lies deeper than any sample is shared: nobody changes it any more."""
        return [self._copy(one, depth + 1) for one in value] if isinstance(value, list) and depth < 100 else value

    def _pack(self, batch: list[Any]) -> bytes:
        try:
            packed: bytes = msgpack.packb(batch, use_bin_type=True, unicode_errors="surrogatepass")
        except ValueError:  # deeper than msgpack packs; deeper than it unpacks is among HEADERS
            return self._last
        return packed

    def _damage_values(self, batch: list[Any]) -> None:
        """Somewhere in the tree, the header included."""
        draw = self._draw
        node: Any = batch
        while True:
            inner = [one for one in node if isinstance(one, list) and one]
            if not inner or draw.random() < 0.3:
                break
            node = draw.choice(inner)
        place = draw.randrange(len(node))
        way = draw.randrange(8)
        if way <= 2:
            node[place] = self._copy(draw.choice(EXTREMES))
        elif way == 3:
            node[place] = self._copy(draw.choice(draw.choice(self._samples)[0]))
        elif way == 4:
            node.insert(place, self._copy(node[place]))
        elif way == 5 and len(node) > 1:
            del node[place]
        elif way == 6:
            other = draw.randrange(len(node))
            node[place], node[other] = node[other], node[place]
        else:
            deep: Any = self._copy(draw.choice(EXTREMES))
            for _ in range(draw.choice((5, 60, 300))):
                deep = [deep] if draw.random() < 0.9 else {"x": deep}
            node[place] = deep

    def _damage_bytes(self, packed: bytes) -> bytes:
        draw = self._draw
        data = bytearray(packed)
        for _ in range(draw.randint(1, 4)):
            place = draw.randrange(len(data)) if data else 0
            way = draw.randrange(6)
            if way == 0 and data:
                data[place] = draw.randrange(256)
            elif way == 1 and data:
                data[place] ^= 1 << draw.randrange(8)
            elif way == 2:
                del data[place : place + draw.randrange(1, 20)]
            elif way == 3:
                data[place:place] = data[place : place + draw.randrange(1, 40)]
            elif way == 4:
                data[place : place + draw.randrange(2)] = draw.choice(HEADERS)
            else:
                start = draw.randrange(len(self._last) + 1)
                data[place:place] = self._last[start : start + draw.randrange(60)]
        return bytes(data)

    def _damage_frames(self, frames: list[bytes]) -> list[bytes]:
        draw = self._draw
        way = draw.randrange(5)
        if way == 0:
            return frames[:-1]
        if way == 1:
            return [*frames, *frames, b""]
        if way == 2:
            return frames[::-1]
        if way == 3:
            return [draw.randbytes(draw.randrange(100)) for _ in range(draw.randrange(4))]
        return [frame[: draw.randrange(len(frame) + 1)] for frame in frames]
