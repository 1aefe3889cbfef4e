"""vLLM's own queue, read by one who sleeps: it is told of every message, and spins in its first seconds alone."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytest.importorskip("vllm")

from headrace.actors.generator.vllm_queues import CONNECTED_AFTER_S, sleep_at_queues, sleeping

pytestmark = pytest.mark.vllm


@pytest.fixture
def shm_broadcast(monkeypatch: pytest.MonkeyPatch) -> Any:
    from vllm.distributed.device_communicators import shm_broadcast

    monkeypatch.setattr(shm_broadcast, "SpinCondition", shm_broadcast.SpinCondition)  # as it was, afterwards
    return shm_broadcast


def test_a_reader_spins_in_its_first_seconds_alone(shm_broadcast: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import zmq

    now = [100.0]
    monkeypatch.setattr(shm_broadcast.time, "monotonic", lambda: now[0])
    context, path = zmq.Context(), shm_broadcast.get_open_zmq_ipc_path()
    writer = shm_broadcast.SpinCondition(is_reader=False, context=context, notify_address=path)
    reader = sleeping(shm_broadcast.SpinCondition, clock=lambda: now[0])(
        is_reader=True, context=context, notify_address=path
    )
    polls: list[int] = []
    poller = reader.poller
    reader.poller = type("Poller", (), {"poll": lambda self, timeout: polls.append(timeout) or poller.poll(timeout)})()
    reader.wait(timeout_ms=0)
    now[0] += CONNECTED_AFTER_S - 1
    reader.record_read()
    now[0] += 0.5
    reader.wait(timeout_ms=0)
    assert polls == []
    now[0] += 2.0
    reader.record_read()
    now[0] += 0.1
    reader.wait(timeout_ms=0)
    assert polls == [0]
    writer.notify()
    reader.wait(timeout_ms=60_000)  # ends at once: it is told
    assert polls == [0, 60_000]
    for socket in (writer.local_notify_socket, reader.local_notify_socket, reader.read_cancel_socket):
        socket.close(0)
    reader.write_cancel_socket.close(0)
    context.term()


def test_a_queue_hands_every_message_over(shm_broadcast: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.actors.generator import vllm_queues

    monkeypatch.setattr(vllm_queues, "CONNECTED_AFTER_S", 0.0)
    sleep_at_queues()
    sleep_at_queues()
    assert shm_broadcast.SpinCondition.__name__ == "SleepingCondition"
    writer = shm_broadcast.MessageQueue(1, 1)
    found: list[int] = []
    handle = writer.export_handle()

    def read() -> None:
        queue = shm_broadcast.MessageQueue.create_from_handle(handle, 0)
        queue.wait_until_ready()
        found.extend(queue.dequeue(timeout=60) for _ in range(200))

    reading = threading.Thread(target=read)
    reading.start()
    writer.wait_until_ready()
    for number in range(200):
        writer.enqueue(number, timeout=60)
    reading.join(120)
    assert found == list(range(200))
