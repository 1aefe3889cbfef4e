"""Every key that docs/configuration.md names can be set as it is written there, without a `+`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from headrace.launch.compose import compose_config

CHOICES = (
    (),
    ("weights=delta", "topology=two_hosts"),
    ("weights=nccl",),
    ("learner/lora=default",),
    ("learner/critic=default",),
    ("launch=inprocess",),
    ("dispatcher=evaluation", "topology=evaluation", "model=checkpoint", "model.run=runs/x"),
    ("generator/engine=vllm",),
    ("generator/engine=vllm_server", "weights=checkpoint", "generator.engine.url=http://127.0.0.1:8000"),
)
"""between them they have every key"""
_DOTTED = re.compile(r"`([a-z_]+(?:\.[a-z_]+)*)\.(?:([a-z_]+)|\{([a-z_, ]+)\})`")
NOT_SET = {"run.dir", "run.id", "weights.auto_reason"}
"""filled in by the launcher, as the text says"""


@cache
def compositions() -> list[dict[str, Any]]:
    return [compose_config(choice).resolve(dir="runs/x", id="1.2.3") for choice in CHOICES]


def documented(text: str) -> Iterator[str]:
    for parent, name, names in _DOTTED.findall(text):
        for one in (name or names).split(", "):
            yield f"{parent}.{one}"


def has(config: Any, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(config, dict) or part not in config:
            return False
        config = config[part]
    return True


def test_documented_keys_exist(repository: Path) -> None:
    top = {key for config in compositions() for key in config}
    keys = set(documented((repository / "docs" / "configuration.md").read_text(encoding="utf-8")))
    keys = {key for key in keys if key.partition(".")[0] in top} - NOT_SET
    assert len(keys) > 50
    assert [key for key in sorted(keys) if not any(has(config, key) for config in compositions())] == []
