"""What a broadcast by torch.distributed's gloo takes between two processes of this host: the peers' way on a CPU."""

from __future__ import annotations

import os
import socket
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def broadcast_s(num_bytes: int, *, rounds: int = 3) -> float:
    """Median seconds of one broadcast of `num_bytes` in one tensor, the receiver's memory touched before."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("spawn")
    answers = context.SimpleQueue()
    ranks = [
        context.Process(target=_rank, args=(rank, port, num_bytes, rounds, answers), daemon=True) for rank in (0, 1)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(600)
    if any(rank.exitcode for rank in ranks):
        raise RuntimeError(f"gloo broadcast: exit codes {[rank.exitcode for rank in ranks]}")
    seconds: float = answers.get()
    return seconds


def _rank(rank: int, port: int, num_bytes: int, rounds: int, answers: object) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    buffer = torch.ones(num_bytes, dtype=torch.uint8)
    dist.broadcast(buffer[:1024], 0)
    seconds = []
    for _ in range(rounds):
        dist.barrier()
        started = time.perf_counter()
        dist.broadcast(buffer, 0)
        dist.barrier()
        seconds.append(time.perf_counter() - started)
    if rank == 1:
        answers.put(statistics.median(seconds))  # type: ignore[attr-defined]
    dist.destroy_process_group()
