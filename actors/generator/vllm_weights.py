"""The vLLM plug-in: tells every vLLM process that weights may arrive by our transports.

`register` is what the entry-point group `vllm.general_plugins` calls, in each of vLLM's processes. The class behind it
lies in vllm_transfer.py and is imported only by a worker whose engine asked for it.
"""

from __future__ import annotations

BACKEND = "headrace"
"""The name under `WeightTransferConfig(backend=…)`."""


def register() -> None:
    """Make the backend known to this vLLM process. Idempotent: vLLM may load its plug-ins more than once."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            BACKEND, "headrace.actors.generator.vllm_transfer", "StagedWeightTransfer"
        )
