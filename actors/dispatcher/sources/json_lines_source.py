"""Tasks from a file of JSON lines, one problem a line: shuffled anew each epoch, with some prompts held out."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from random import Random
from typing import Any

from headrace.actors.dispatcher.sources.prompt_fingerprint import prompt_fingerprint
from headrace.actors.session import ChatMessage, Task
from headrace.actors.tasks.seeds import derived_seed


class JsonLinesSource:
    """path: the file. prompt_field: its text, or a list of {"role", "content"}. answer_field: the gold answer, None for
    none.
    system: a system message put before text prompts. seed: of the order. held_out_size: prompts kept out of training,
    chosen by `held_out_seed` and the prompt alone. Other fields of a line become the task's entry. The file is read at
    first use and kept.
    """

    def __init__(
        self,
        *,
        path: str,
        prompt_field: str = "prompt",
        answer_field: str | None = "answer",
        system: str = "",
        seed: int = 0,
        held_out_seed: int = 1,
        held_out_size: int = 0,
    ) -> None:
        if held_out_size < 0:
            raise ValueError(f"held_out_size must be >= 0, got {held_out_size}")
        self._path = Path(path)
        self._prompt_field = prompt_field
        self._answer_field = answer_field
        self._system = system
        self._seed = seed
        self._held_out_seed = held_out_seed
        self._held_out_size = held_out_size

    def task(self, index: int) -> Task:
        """Training task `index`; each epoch passes over every training line once, in another order."""
        if index < 0:
            raise IndexError(f"a task index must be >= 0, got {index}")
        training, _ = self._split
        if not training:
            raise ValueError(
                f"{self._path}: held_out_size={self._held_out_size} leaves none to train on of its prompts; lower it"
            )
        epoch, place = divmod(index, len(training))
        return training[self._order(epoch)[place]]

    def held_out(self, num: int) -> list[Task]:
        """The first `num` held-out tasks. Raises ValueError past held_out_size."""
        if not 0 <= num <= self._held_out_size:
            raise ValueError(f"{num} held-out tasks were asked for, held_out_size is {self._held_out_size}; raise it")
        return self._split[1][:num]

    def fingerprint(self) -> str:
        settings = [self._prompt_field, self._answer_field, self._system, self._seed]
        held_out = [self._held_out_seed, self._held_out_size]
        digest = hashlib.blake2b(json.dumps([settings, held_out]).encode(), digest_size=16)
        digest.update(self._path.read_bytes())
        return digest.hexdigest()

    def _order(self, epoch: int) -> list[int]:
        if self._latest_order[0] != epoch:
            places = list(range(len(self._split[0])))
            Random(derived_seed("order", self._seed, epoch)).shuffle(places)
            self._latest_order = (epoch, places)
        return self._latest_order[1]

    _latest_order: tuple[int, list[int]] = (-1, [])

    @functools.cached_property
    def _split(self) -> tuple[list[Task], list[Task]]:
        """(training tasks, held-out tasks): all lines of one prompt are on one side; held out is one line of each."""
        by_prompt: dict[str, list[Task]] = {}
        for number, line in enumerate(self._path.read_text(encoding="utf-8").splitlines(), start=1):
            if line.strip():
                task = self._parse(line, number)
                by_prompt.setdefault(prompt_fingerprint(task.prompt), []).append(task)
        ranked = sorted(by_prompt, key=lambda prompt: derived_seed(self._held_out_seed, prompt))
        if len(ranked) < max(1, self._held_out_size):
            raise ValueError(
                f"{self._path} holds {len(ranked)} distinct prompts, and held_out_size={self._held_out_size} asks for "
                "more; lower it"
            )
        chosen = set(ranked[: self._held_out_size])
        training = [task for prompt, tasks in by_prompt.items() if prompt not in chosen for task in tasks]
        return training, [by_prompt[prompt][0] for prompt in ranked[: self._held_out_size]]

    def _parse(self, line: str, number: int) -> Task:
        place = f"{self._path}:{number}"
        try:
            record: Any = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{place} is no JSON: {error}") from None
        for field in (self._prompt_field, self._answer_field):
            if not isinstance(record, dict) or (field is not None and field not in record):
                raise ValueError(
                    f"{place} has no field {field!r}; it has {sorted(record) if isinstance(record, dict) else record!r}"
                )
        answer = None if self._answer_field is None else record[self._answer_field]
        rest = {key: value for key, value in record.items() if key not in (self._prompt_field, self._answer_field)}
        return Task(
            task_id=f"line/{number}",
            source=self._path.name,
            prompt=self._messages(record[self._prompt_field], place),
            answer=None if answer is None else str(answer),
            entry=rest,
        )

    def _messages(self, prompt: Any, place: str) -> tuple[ChatMessage, ...]:
        if isinstance(prompt, str):
            system = (ChatMessage("system", self._system),) if self._system else ()
            return (*system, ChatMessage("user", prompt))
        try:
            return tuple(ChatMessage(message["role"], message["content"]) for message in prompt)
        except (TypeError, KeyError) as error:
            raise ValueError(
                f"{place}: a prompt is a text or a list of {{role, content}}, got {prompt!r:.100}"
            ) from error
