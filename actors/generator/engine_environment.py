"""The environment variables that an engine needs: besides launch/environ.py the one user of os.environ.

vLLM takes some settings from the environment only. They are set while its processes start and restored afterwards, so
that they never leak into anything else that this process starts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def engine_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set `values` for the processes that are started inside the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def secret(name: str, setting: str) -> str:
    """What must not stand in a configuration. setting: the key that names the variable. Raises ValueError."""
    value = os.environ.get(name, "").strip()
    if not value:
        raise ValueError(f"{setting} names the environment variable {name}, which is not set here; set it, or null")
    return value
