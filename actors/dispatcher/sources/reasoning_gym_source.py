"""Tasks from reasoning-gym's procedural datasets: an endless mixture, and held-out tasks whose prompts never occur in
training.

Task `index` depends on the settings and the index alone. A dataset makes item i from `its seed + i`, so two datasets
with
neighbouring seeds share items: every chunk here gets a seed of its own by hashing, and a training prompt that is
nevertheless in the held-out set is replaced by another draw.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.actors.dispatcher.sources.prompt_fingerprint import prompt_fingerprint
from headrace.actors.session import Task
from headrace.actors.tasks.plain_json import to_json
from headrace.actors.tasks.prompts import LibraryPrompt, PromptFormat
from headrace.actors.tasks.seeds import derived_fraction, derived_seed

CHUNK_ITEMS = 500
"""items that are taken from one instance of a dataset: its default size, which every dataset supports"""

_TRIES_A_TASK = 200


@dataclass(frozen=True, slots=True)
class _Dataset:
    name: str
    weight: float
    config: dict[str, Any]


class ReasoningGymSource:
    """datasets: for each name of the library {"weight": relative share (default 1), "config": its settings (default
    none)}, or one name alone
    seed: of the training tasks. held_out_seed: of the held-out ones. held_out_size: how many there are (fixed, since
    training avoids all of them whether an evaluation uses them or not). prompt: how problems are worded
    (headrace.actors.tasks.prompts)
    """

    def __init__(
        self,
        *,
        datasets: Mapping[str, Mapping[str, Any] | None] | str,
        seed: int = 0,
        held_out_seed: int = 1,
        held_out_size: int = 512,
        prompt: PromptFormat | None = None,
    ) -> None:
        if not datasets:
            raise ValueError("datasets must name at least one dataset of reasoning-gym, got none")
        if held_out_size < 0:
            raise ValueError(f"held_out_size must be >= 0, got {held_out_size}")
        named = {datasets: None} if isinstance(datasets, str) else datasets
        self._datasets = tuple(_described(name, settings) for name, settings in named.items())
        self._seed = seed
        self._held_out_seed = held_out_seed
        self._held_out_size = held_out_size
        self._prompt: PromptFormat = prompt or LibraryPrompt()
        self._instance = functools.lru_cache(maxsize=4 * len(self._datasets) + 4)(_make_dataset)
        self._held_out: list[Task] | None = None
        self._held_out_prompts: frozenset[str] = frozenset()

    def task(self, index: int) -> Task:
        """Training task `index`, from 0 on. Raises ValueError where nearly every prompt of the datasets is held out."""
        if index < 0:
            raise IndexError(f"a task index must be >= 0, got {index}")
        self._held_out_tasks()
        for attempt in range(_TRIES_A_TASK):
            stream = f"train/{self._seed}" if attempt == 0 else f"train/{self._seed}/again/{attempt}"
            task = self._make(stream, index, task_id=f"train/{index}")
            if prompt_fingerprint(task.prompt) not in self._held_out_prompts:
                return task
        raise ValueError(
            f"{_TRIES_A_TASK} draws for training task {index} are all held-out prompts; "
            f"lower held_out_size ({self._held_out_size}) or widen the datasets' settings"
        )

    def held_out(self, num: int) -> list[Task]:
        """The first `num` held-out tasks, all with distinct prompts. Raises ValueError past held_out_size."""
        if not 0 <= num <= self._held_out_size:
            raise ValueError(f"{num} held-out tasks were asked for, held_out_size is {self._held_out_size}; raise it")
        return self._held_out_tasks()[:num]

    def fingerprint(self) -> str:
        described = {
            "datasets": [[d.name, d.weight, d.config] for d in self._datasets],
            "seeds": [self._seed, self._held_out_seed, self._held_out_size],
            "prompt": self._prompt.describe(),
            "library": importlib.metadata.version("reasoning-gym"),
        }
        return hashlib.blake2b(json.dumps(described, sort_keys=True).encode(), digest_size=16).hexdigest()

    def _held_out_tasks(self) -> list[Task]:
        if self._held_out is None:
            tasks: dict[str, Task] = {}
            stream = f"held_out/{self._held_out_seed}"
            for index in range(_TRIES_A_TASK * max(1, self._held_out_size)):
                if len(tasks) == self._held_out_size:
                    break
                task = self._make(stream, index, task_id=f"held_out/{len(tasks)}")
                tasks.setdefault(prompt_fingerprint(task.prompt), task)
            if len(tasks) < self._held_out_size:
                raise ValueError(
                    f"the datasets gave only {len(tasks)} distinct prompts for held_out_size={self._held_out_size}; "
                    "lower it or widen the datasets' settings"
                )
            self._held_out, self._held_out_prompts = list(tasks.values()), frozenset(tasks)
        return self._held_out

    def _make(self, stream: str, index: int, *, task_id: str) -> Task:
        dataset = self._choose(stream, index)
        chunk, offset = divmod(index, CHUNK_ITEMS)
        config_json = json.dumps(dataset.config, sort_keys=True)
        instance = self._instance(dataset.name, config_json, derived_seed(stream, dataset.name, chunk))
        item = instance[offset]
        return Task(
            task_id=f"{dataset.name}/{task_id}",
            source=dataset.name,
            prompt=self._prompt.messages(item),
            answer=self._prompt.answer(item),
            entry={"dataset": dataset.name, "config": dataset.config, "item": to_json(item, f"{dataset.name}.item")},
        )

    def _choose(self, stream: str, index: int) -> _Dataset:
        point = derived_fraction(stream, "mixture", index) * sum(d.weight for d in self._datasets)
        for dataset in self._datasets:
            point -= dataset.weight
            if point < 0:
                return dataset
        return self._datasets[-1]


def _described(name: str, settings: Mapping[str, Any] | None) -> _Dataset:
    given = _plain(settings or {})
    unknown = sorted(set(given) - {"weight", "config"})
    if unknown:
        raise ValueError(
            f"datasets.{name}: unknown {unknown}; allowed are weight and config (the dataset's own settings)"
        )
    config = given.get("config") or {}
    for reserved in ("seed", "size"):
        if reserved in config:
            raise ValueError(
                f"datasets.{name}.config.{reserved} is set by the source; use seed and held_out_size of the source"
            )
    weight = float(given.get("weight", 1.0))
    if weight <= 0:
        raise ValueError(f"datasets.{name}.weight must be > 0, got {weight}")
    return _Dataset(name, weight, config)


def _plain(value: Any) -> Any:
    """Config containers as dicts and lists."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        return value
    return [_plain(item) for item in value]


def _make_dataset(name: str, config_json: str, seed: int) -> Any:
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if name not in DATASETS:
        raise ValueError(f"reasoning-gym has no dataset {name!r}; it has {', '.join(sorted(DATASETS))}")
    try:
        return reasoning_gym.create_dataset(name, **json.loads(config_json), seed=seed, size=CHUNK_ITEMS)
    except (TypeError, AssertionError) as error:
        raise ValueError(f"datasets.{name}.config is not what the dataset takes: {error}") from error
