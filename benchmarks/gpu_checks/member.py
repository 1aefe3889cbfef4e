"""A receiving process of the checks, on one device, told what to do by a queue.

Spawned by ipc.py, nccl.py and vllm_native.py; everything that it does is answered, errors too.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

TIMEOUT_S = 120.0
"""for an answer of a process that may still import torch"""


class Member:
    """The parent's end of one."""

    def __init__(self, serve: Callable[[Any, Any, str], None], device: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.device = device
        self._inbox, self._outbox = context.Queue(), context.Queue()
        self._process = context.Process(target=serve, args=(self._inbox, self._outbox, device), daemon=True)
        self._process.start()

    def tell(self, *command: Any) -> None:
        self._inbox.put(command)

    def answer(self, timeout_s: float = TIMEOUT_S) -> Any:
        """Raises RuntimeError with what went wrong there, queue.Empty where it says nothing."""
        kind, value = self._outbox.get(timeout=timeout_s)
        if kind != "ok":
            raise RuntimeError(f"the receiver on {self.device}: {kind}: {value}")
        return value

    def wait_until_dead(self) -> None:
        """Raises RuntimeError where it lives on."""
        self._process.join(TIMEOUT_S)
        if self._process.exitcode != -signal.SIGKILL:
            raise RuntimeError(
                f"the receiver on {self.device} was to be killed; its exit code: {self._process.exitcode}"
            )

    def close(self) -> None:
        self._process.kill()
        self._process.join(10)


def obey(inbox: Any, outbox: Any, commands: Mapping[str, Callable[..., Any]]) -> None:
    """In the member's process, until it is killed: (name, argument, …) in, what the command returned out."""
    while True:
        name, *arguments = inbox.get()
        try:
            outbox.put(("ok", commands[name](*arguments)))
        except Exception as error:  # whatever it was, the parent says it
            outbox.put((type(error).__name__, str(error)))


def serve(inbox: Any, outbox: Any, device: str) -> None:
    """join · receive · die (in the middle of a version) · abort, until the process is killed."""
    from gpu_checks.weights import fingerprints
    from headrace.transport.weights.collective.receiver import CollectiveReceiver

    receiver = CollectiveReceiver(device=device)

    def join(group: str, backend: str, unique_id: bytes, options: dict[str, Any]) -> None:
        receiver.join(group, backend, unique_id, **options)

    def receive(group: str, manifest: Any, timeout_s: float) -> Any:
        received = receiver.receive(group, manifest, timeout_s=timeout_s)
        found = fingerprints(received.tensors(include_tied=True))
        received.close()
        return received.send_s, received.verify_s, found

    def die(group: str, manifest: Any, timeout_s: float) -> Any:
        arriving = receiver.arriving(group, manifest, timeout_s=timeout_s)
        next(arriving)  # the first tensor, of several buckets; `arriving` must live: its end would be an abort
        os.kill(os.getpid(), signal.SIGKILL)

    obey(inbox, outbox, {"join": join, "receive": receive, "die": die, "abort": receiver.abort})
