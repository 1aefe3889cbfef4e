"""One sequence as the trainer eats it: tokens, which of them are trained, and what the objective needs to know."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class TrainSequence:
    """T tokens. The first token is never trained: nothing predicts it.

    token_ids:   int32[T]
    loss_mask:   bool[T], the tokens that are trained
    logprobs:    float32[T], log mu where loss_mask is True
    versions:    int32[T], version of the weights that sampled the token
    advantage:   A of the whole sequence
    temperature: the logits are divided by it before the log-softmax, as the engine did; > 0
    lags:        int32[T], optimizer steps between the weights that sampled the token and the trained ones; None: 0
    group:       number of its group within the batch
    reward:      its reward, penalties taken off; 0 for a document
    """

    token_ids: np.ndarray
    loss_mask: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    advantage: float
    temperature: float = 1.0
    lags: np.ndarray | None = None
    group: int = 0
    reward: float = 0.0

    def __post_init__(self) -> None:
        if not len(self.token_ids) == len(self.loss_mask) == len(self.logprobs) == len(self.versions):
            raise ValueError("token_ids, loss_mask, logprobs and versions must have one length")
        if not self.loss_mask.any() or self.loss_mask[0]:
            raise ValueError("a sequence needs a trained token, and the first token cannot be one: nothing predicts it")
        if not self.temperature > 0:
            raise ValueError(f"temperature must be > 0 in training, got {self.temperature}")

    @property
    def num_trained(self) -> int:
        return int(np.count_nonzero(self.loss_mask))

    @property
    def trained_lags(self) -> np.ndarray:
        """int64[trained tokens]."""
        if self.lags is None:
            return np.zeros(self.num_trained, dtype=np.int64)
        lags_N: np.ndarray = self.lags[self.loss_mask].astype(np.int64)
        return lags_N


def document_sequence(token_ids: np.ndarray) -> TrainSequence:
    """int32[T], T >= 2: every token but the first is trained, the end-of-document token too."""
    mask = np.ones(len(token_ids), dtype=np.bool_)
    mask[0] = False
    return masked_sequence(token_ids, mask)


def masked_sequence(token_ids: np.ndarray, loss_mask: np.ndarray) -> TrainSequence:
    """int32[T], bool[T]: a text of which the marked tokens are trained, all with the same weight."""
    return TrainSequence(
        token_ids=token_ids,
        loss_mask=loss_mask,
        logprobs=np.zeros(len(token_ids), dtype=np.float32),
        versions=np.zeros(len(token_ids), dtype=np.int32),
        advantage=1.0,
    )
