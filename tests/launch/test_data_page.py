"""What docs/data.md says can be composed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.launch.compose import compose_config


def test_every_choice_of_the_page_composes(repository: Path) -> None:
    page = (repository / "docs" / "data.md").read_text(encoding="utf-8")
    groups = {"tasks": "Tasks", "learner/pretrain": "Corpora", "learner/sft": "Conversations"}
    for group, title in groups.items():
        section = page.partition(f"\n## {title}")[2].partition("\n## ")[0]
        table = section.partition("| choice |")[2].partition("\n\n")[0]
        named = {name for row in re.findall(r"^\| (`[^|]+) \|", table, re.M) for name in re.findall(r"`(\w+)`", row)}
        there = {path.stem for path in (repository / "configs" / group).glob("*.yaml")} - {"none"}
        assert named == there, group
        for name in named:
            compose_config(["experiment=smoke", f"{group}={name}"])


@pytest.mark.parametrize(
    "overrides",
    [
        ["learner/pretrain=text", "learner.pretrain.source.paths=a.txt", "learner.pretrain.steps=5", "learner/sft=chat",
         "learner.sft.source.paths=c.jsonl", "learner.sft.steps=1"],
        ["tasks=hub", "tasks.records.name=openai/gsm8k", "tasks.records.config=main", "tasks.prompt_field=question",
         "grader=math"],
        ["tasks=python", "tasks.records.function._target_=my_package.make_problems"],
        ["tasks=parquet", "tasks.records.paths=*.parquet"],
        ["experiment=word_problems"],
    ],
)  # fmt: skip
def test_its_command_lines_resolve(overrides: list[str]) -> None:
    config = compose_config(overrides).resolve(dir="d", id="i")
    assert config["dispatcher"]["tasks"] == config["tasks"]
