"""The model under training: a transformers causal LM, float32 masters, float32 head. Computes log-probs of tokens.

Called by the trainer and the probe, in the learner's worker thread. Never steps the optimizer, never sends anything.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import nn

from headrace.actors.learner.holds import WeightHolds
from headrace.actors.learner.packing import MicroBatch
from headrace.actors.learner.ranks.protocol import ALONE, Ranks
from headrace.actors.learner.token_logprobs import token_logprobs
from headrace.actors.learner.weight_files import check_weight_files

if TYPE_CHECKING:
    from headrace.actors.learner.adapters import Adapters
    from headrace.actors.learner.lora import LoraSettings

AUTOCAST_DTYPES = {"none": None, "bfloat16": torch.bfloat16}


class Interrupted(Exception):
    """The learner is stopping: what was being computed is not needed any more."""


class TokenLogprobs(Protocol):
    """What the trainer asks of a frozen reference."""

    def token_logprobs(self, micro_batch: MicroBatch, temperature_N: torch.Tensor) -> torch.Tensor: ...


class Policy:
    """`autocast`: "none" computes in float32, "bfloat16" runs the layers (never the head) in bfloat16.
    `logits_chunk_tokens`: positions whose logits stand in memory at once. Tensors that it is given may lie anywhere;
    what it returns lies on `device`. `holds`: to be waited for before the weights change."""

    def __init__(
        self, model: Any, *, autocast: str = "none", device: str = "cpu", logits_chunk_tokens: int = 512
    ) -> None:
        if autocast not in AUTOCAST_DTYPES:
            raise ValueError(f"learner.autocast must be one of {', '.join(AUTOCAST_DTYPES)}, got {autocast!r}")
        self.device = torch.device(device)
        self.model = model.to(self.device)
        self._layers = getattr(model, model.base_model_prefix)
        self._head: nn.Linear = model.get_output_embeddings()
        self._autocast_dtype = AUTOCAST_DTYPES[autocast]
        self._logits_chunk_tokens = logits_chunk_tokens
        self._interrupted = threading.Event()
        self._ranks: Ranks = ALONE
        self._trunk: _Trunk | None = None
        self.holds = WeightHolds()
        self.adapters: Adapters | None = None
        self._check_head()

    @classmethod
    def load(
        cls, folder: Path, *, autocast: str = "none", device: str = "cpu", logits_chunk_tokens: int = 512
    ) -> Policy:
        """From a folder that plain transformers loads. Weights become float32, dropout is off. Raises ValueError naming
        a weight file that is damaged."""
        from transformers import AutoModelForCausalLM

        check_weight_files(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
        model.eval()  # dropout off: the engine has none either
        return cls(model, autocast=autocast, device=device, logits_chunk_tokens=logits_chunk_tokens)

    def adapt(self, settings: LoraSettings, *, base: Path) -> Adapters:
        """Freeze the weights, which lie in the folder `base`, and put adapters beside them: they alone are trained."""
        from headrace.actors.learner.adapters import Adapters  # imports PEFT

        self.adapters = Adapters(self.model, settings, base=base)
        return self.adapters

    def shard(self, ranks: Ranks) -> None:
        """From now on `ranks` hold the weights, a part each, and compute together; nothing where there is one. Not with
        adapters. Weights come together layer by layer, the head's with the pass that uses them."""
        if ranks.size == 1:
            return
        self._ranks = ranks
        self._trunk = _Trunk(self.model)
        kinds = set(self.model._no_split_modules or ())
        ranks.shard(self._trunk, [module for module in self.model.modules() if type(module).__name__ in kinds])

    @property
    def vocab_size(self) -> int:
        return int(self._head.weight.shape[0])

    @property
    def hidden_size(self) -> int:
        return int(self._head.weight.shape[1])

    def observer(self) -> Policy:
        """The same weights (the very memory) under modules of their own, for another thread to compute with while this
        one trains: modules hold state, such as the frequencies of long positions, or whether adapters are on. Takes
        no gradient. Whoever uses it takes a hold."""
        stored = self.model.state_dict(keep_vars=True).values()
        shared: dict[int, Any] = {id(tensor): tensor for tensor in stored}
        for parameter in self.model.parameters():  # without gradient: autocast's cache is one for all threads
            shared[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=False)
        observer = copy.copy(self)
        observer.model = copy.deepcopy(self.model, shared)
        observer._layers = getattr(observer.model, observer.model.base_model_prefix)
        observer._head = observer.model.get_output_embeddings()
        return observer

    def under(self, autocast: str) -> Policy:
        """The same model, computed so."""
        other = copy.copy(self)
        other._autocast_dtype = AUTOCAST_DTYPES[autocast]
        return other

    def observes(self, other: Policy) -> bool:
        """Whether this is still an observer of `other`, whose tensors may have been replaced since."""
        ours, theirs = (policy.model.state_dict(keep_vars=True) for policy in (self, other))
        return ours.keys() == theirs.keys() and all(
            ours[name].data_ptr() == theirs[name].data_ptr() and ours[name].dtype == theirs[name].dtype for name in ours
        )

    def token_logprobs(self, micro_batch: MicroBatch, temperature_N: torch.Tensor) -> torch.Tensor:
        """log pi of each trained token, float32[N], with gradient unless the caller turned it off.

        The head runs on trained positions only and in float32; logits are divided by the session's temperature before
        the log-softmax, exactly as the engine does. Raises Interrupted after `interrupt`.
        """
        return self.compute(micro_batch, temperature_N)[1]

    def compute(self, micro_batch: MicroBatch, temperature_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What `predictors` gives, and `token_logprobs`, in one pass."""
        if self._ranks.any(self._interrupted.is_set()):
            raise Interrupted
        if self._trunk is not None:
            hidden_NH, logprobs_N = self._trunk(self, micro_batch, temperature_N)
            return hidden_NH, logprobs_N
        return self._compute(micro_batch, temperature_N)

    def _compute(self, micro_batch: MicroBatch, temperature_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden_NH = self._predictors(micro_batch)
        return hidden_NH, self.logprobs_of(hidden_NH, micro_batch, temperature_N)

    def predictors(self, micro_batch: MicroBatch) -> torch.Tensor:
        """The last hidden states that predict the trained tokens, float32[N, H]. Raises Interrupted."""
        if self._interrupted.is_set():
            raise Interrupted
        return self._predictors(micro_batch)

    def _predictors(self, micro_batch: MicroBatch) -> torch.Tensor:
        hidden_RLH = self._hidden(micro_batch)
        predictors_N = self._tensor(micro_batch.predictors_N)
        return hidden_RLH.flatten(0, 1).index_select(0, predictors_N).float()

    def logprobs_of(
        self, hidden_NH: torch.Tensor, micro_batch: MicroBatch, temperature_N: torch.Tensor
    ) -> torch.Tensor:
        """See token_logprobs. hidden_NH: what `predictors` gave."""
        return token_logprobs(
            hidden_NH,
            self._head.weight,
            self._head.bias,
            self._tensor(micro_batch.targets_N),
            temperature_N.to(self.device),
            chunk_tokens=self._logits_chunk_tokens,
        )

    def interrupt(self) -> None:
        """From any thread: a long computation ends at its next micro-batch instead of holding up a stop."""
        self._interrupted.set()
        self.holds.interrupt()

    def _hidden(self, micro_batch: MicroBatch) -> torch.Tensor:
        # No mask, and positions that begin anew at each sequence: transformers then makes each layer's own (causal,
        # with a window where it has one, never across a border). One that is given would be every layer's.
        with self._precision():
            output = self._layers(
                input_ids=self._tensor(micro_batch.input_ids_RL),
                position_ids=self._tensor(micro_batch.positions_RL),
                use_cache=False,
            )
        hidden_RLH: torch.Tensor = output.last_hidden_state
        return hidden_RLH

    @contextlib.contextmanager
    def _precision(self) -> Iterator[None]:
        if self._autocast_dtype is None:
            yield
        else:
            with torch.autocast(self.device.type, dtype=self._autocast_dtype):
                yield

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device)

    def _bias(self) -> torch.Tensor | None:
        return None if self._head.bias is None else self._head.bias.float()

    @torch.no_grad()
    def _check_head(self) -> None:
        """Some models scale or cap their logits after the head. Refuse them rather than train on other log-probs."""
        ids_1L = torch.arange(min(4, self.vocab_size), device=self.device)[None]
        hidden_1LH = self._layers(input_ids=ids_1L, use_cache=False).last_hidden_state
        ours = nn.functional.linear(hidden_1LH.float(), self._head.weight.float(), self._bias())
        theirs = self.model(input_ids=ids_1L, use_cache=False).logits.float()
        if not torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4):
            raise ValueError(
                f"{type(self.model).__name__} changes its logits after the output head (a scale or a soft cap), which "
                "the learner's float32 head does not; choose a model without that"
            )


class _Trunk(nn.Module):
    """The root of what is sharded: layers and head are used in one `forward`, during which its weights are whole."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, policy: Policy, micro_batch: MicroBatch, temperature_N: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return policy._compute(micro_batch, temperature_N)


class WithoutAdapters:
    """The policy's base: a reference that needs no second model in memory."""

    def __init__(self, policy: Policy, adapters: Adapters) -> None:
        self._policy = policy
        self._adapters = adapters

    def token_logprobs(self, micro_batch: MicroBatch, temperature_N: torch.Tensor) -> torch.Tensor:
        """See Policy."""
        with self._adapters.disabled():
            return self._policy.token_logprobs(micro_batch, temperature_N)
