"""A rank in a process of its own, for test_communicator.py: joins, begins to receive, and dies of SIGKILL in the middle
of the bucket. Arguments: id, rank, world size, bytes of the bucket, bytes after which it dies.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch

from headrace.transport.weights.collective.communicator import join


def main() -> None:
    unique_id, rank, world_size, nbytes, fatal = sys.argv[1], *map(int, sys.argv[2:])
    communicator = join("memory", unique_id.encode(), rank=rank, world_size=world_size, timeout_s=120)
    buffer = torch.zeros(nbytes, dtype=torch.uint8)
    communicator.broadcast(buffer)
    while not buffer[fatal - 1]:
        time.sleep(1e-3)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
