"""What a child is told, and where the run's keys are: with the launcher, in its private folder, and nowhere else."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from headrace.launch.network_settings import NetworkSettings
from headrace.launch.run_network import KEYS_FILE, Joining, RunNetwork
from headrace.launch.undertaker import Undertaker
from headrace.transport import CurveKeys, DeadlineExceeded


@pytest.mark.parametrize("bind", ["ipc", "stream", "tcp://127.0.0.1"])
def test_a_child_joins_with_one_line(bind: str) -> None:
    async def main() -> None:
        undertaker = Undertaker()
        settings = NetworkSettings(bind=bind, max_message_bytes=1 << 20)
        network = RunNetwork(undertaker, silence_s=30.0, lag_warn_s=1.0, settings=settings)
        try:
            await network.runtime.start()
            line = network.joining("child").to_line()
            joining = Joining.from_json(json.loads(line))
            assert joining == network.joining("child")
            folder = Path(joining.ipc_folder)
            file = folder / KEYS_FILE
            assert folder.stat().st_mode & 0o777 == 0o700  # noqa: ASYNC240
            assert file.exists() == bind.startswith("tcp")
            if joining.keys is not None:
                assert CurveKeys.read(file) == joining.keys
                assert joining.keys.client_secret not in repr(joining)
                assert not any(joining.keys.client_secret in value for value in os.environ.values())
            child = joining.runtime()
            await child.start()
            with pytest.raises(DeadlineExceeded):
                await child.context.ask("nobody/0", joining, timeout_s=0.01)
            await child.stop()
        finally:
            await network.runtime.stop()
            network.close()
            undertaker.dismiss()
        assert not folder.exists()  # noqa: ASYNC240

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"bind": "tcp://0.0.0.0"}, r"^bind: .* wildcard"),
        ({"bind": "udp://x"}, "^bind must be"),
        ({"bind": "tcp://198.51.100.7"}, r"^bind: .* is no address of this host"),
        ({"max_message_bytes": 1000}, r"^max_message_bytes must be an integer >= 1048576"),
        ({"max_message_bytes": 1.5e9}, "^max_message_bytes must be"),
        ({"shared_memory_bytes": -1}, "^shared_memory_bytes must be from 0"),
        ({"shared_memory_bytes": 1e6}, "^shared_memory_bytes must be from 0"),
        ({"curve": "no"}, "^curve must be true or false"),
    ],
)
def test_settings_that_cannot_work_are_named(fields: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        NetworkSettings(**fields)  # type: ignore[arg-type]


def test_what_others_reach_has_keys(own_address: str) -> None:
    with pytest.raises(ValueError, match=r"^curve may be false on loopback only"):
        NetworkSettings(bind=f"tcp://{own_address}", curve=False)


def test_keys_are_made_for_tcp_alone() -> None:
    assert NetworkSettings().make_keys() is None
    assert NetworkSettings(bind="tcp://127.0.0.1", curve=False).make_keys() is None
    keys = NetworkSettings(bind="tcp://127.0.0.1").make_keys()
    assert keys is not None
    assert keys != NetworkSettings(bind="tcp://127.0.0.1").make_keys()
