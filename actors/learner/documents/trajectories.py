"""Our own rewarded trajectories as documents: what a run's graders recorded, chosen by reward, as it was sampled.

Reads RUN/trajectories/*.jsonl (the graders' shards). One pass chooses, keeping for each chosen line only its place and
what it is ranked by; the tokens are read again when they come. Token ids and masks are those of the record: nothing is
decoded or tokenised, so it is for a model with the tokenizer of that run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.actors.learner.documents.corpora import Corpus
from headrace.actors.learner.documents.protocol import TokenDocument

_WHOLE_LINE = b"\n"


@dataclass(frozen=True, slots=True)
class _Chosen:
    reward: float
    session_id: str
    task: str
    digest: bytes
    file: str
    offset: int


class RewardedTrajectories:
    """Records: those of `run` with a finite reward >= min_reward, which sampled something, ended in one of `endings`
    and were sampled for one of `purposes`; of equal tokens one; of a task at most `max_per_task`, the best first, those
    of equal reward in the order of issue."""

    def __init__(
        self,
        run: str,
        *,
        min_reward: float,
        max_per_task: int | None,
        endings: Sequence[str],
        purposes: Sequence[str],
    ) -> None:
        self._folder = Path(run) / "trajectories"
        self._min_reward = min_reward
        self._max_per_task = max_per_task
        self._endings = frozenset(endings)
        self._purposes = frozenset(purposes)
        self._chosen: list[_Chosen] | None = None

    def parts(self) -> list[str]:
        return ["trajectories"]

    def read(self, part: str, position: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
        for number, chosen in enumerate(self._choice()[position:], start=position + 1):
            with open(chosen.file, "rb") as file:
                file.seek(chosen.offset)
                yield json.loads(file.readline()), number

    def fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for chosen in self._choice():
            digest.update(chosen.digest)
        return digest.hexdigest()

    def _choice(self) -> list[_Chosen]:
        if self._chosen is None:
            best: dict[bytes, _Chosen] = {}
            for candidate in self._candidates():
                known = best.get(candidate.digest)
                if known is None or _rank(candidate) < _rank(known):
                    best[candidate.digest] = candidate
            counts: dict[str, int] = {}
            kept = []
            for chosen in sorted(best.values(), key=_rank):
                counts[chosen.task] = counts.get(chosen.task, 0) + 1
                if self._max_per_task is None or counts[chosen.task] <= self._max_per_task:
                    kept.append(chosen)
            if not kept:
                raise ValueError(
                    f"{self._folder} holds no trajectory with a reward >= {self._min_reward} that ended in "
                    f"{sorted(self._endings)}; lower min_reward, or give another run"
                )
            self._chosen = sorted(kept, key=lambda chosen: (chosen.session_id, chosen.digest))
        return self._chosen

    def _candidates(self) -> Iterator[_Chosen]:
        files = sorted(self._folder.glob("*.jsonl"))
        if not files:
            raise ValueError(f"{self._folder} holds no *.jsonl; run must be the folder of a run, with trajectories/")
        for path in files:
            with path.open("rb") as file:
                offset = 0
                for line in file:
                    if line.endswith(_WHOLE_LINE):  # a run that goes on may be writing the last one
                        found = self._candidate(json.loads(line), str(path), offset)
                        if found is not None:
                            yield found
                    offset += len(line)

    def _candidate(self, record: dict[str, Any], file: str, offset: int) -> _Chosen | None:
        reward = record["reward"]
        if not isinstance(reward, int | float) or not reward >= self._min_reward:  # "nan", "inf" are texts
            return None
        if record["ending"] not in self._endings or record["purpose"] not in self._purposes:
            return None
        if not any(record["loss_mask"]):
            return None
        task = f"{record['source']}\x1f{record['task_id']}"
        tokens = np.asarray(record["token_ids"], dtype=np.int32)
        mask = np.asarray(record["loss_mask"], dtype=np.bool_)
        digest = hashlib.blake2b(tokens.tobytes() + mask.tobytes(), digest_size=16).digest()
        return _Chosen(float(reward), record["session_id"], task, digest, file, offset)


def _rank(chosen: _Chosen) -> tuple[float, str, str, int]:
    return (-chosen.reward, chosen.session_id, chosen.file, chosen.offset)


class TrajectoryDocuments(Corpus):
    """run: the folder of a run. min_reward: of what is learned from. max_per_task: null for all. purposes: "eval" lets
    the sessions of its evaluations in, whose tasks are held out otherwise. A task is held out with all its sessions."""

    def __init__(
        self,
        *,
        run: str,
        min_reward: float = 1.0,
        max_per_task: int | None = 4,
        endings: Sequence[str] = ("done",),
        purposes: Sequence[str] = ("train",),
        shuffle_buffer: int = 10_000,
        held_out_fraction: float = 0.01,
        held_out_seed: int = 1,
    ) -> None:
        if max_per_task is not None and max_per_task < 1:
            raise ValueError(f"documents.max_per_task must be >= 1 or null, got {max_per_task}")
        if not purposes or not set(purposes) <= {"train", "eval"}:
            raise ValueError(f"documents.purposes must be train, eval or both, got {list(purposes)}")
        super().__init__(
            RewardedTrajectories(
                run, min_reward=min_reward, max_per_task=max_per_task, endings=endings, purposes=purposes
            ),
            shuffle_buffer=shuffle_buffer,
            held_out_fraction=held_out_fraction,
            held_out_seed=held_out_seed,
        )

    def document(self, record: Any) -> TokenDocument:
        return TokenDocument(
            np.asarray(record["token_ids"], dtype=np.int32), np.asarray(record["loss_mask"], dtype=np.bool_)
        )

    def identity_of(self, record: Any) -> str:
        return f"{record['source']}\x1f{record['task_id']}"
