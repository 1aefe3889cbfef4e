"""Tasks from records, one problem each: JSON lines, parquet, a data set of the hub, or what one's own function gives.
Shuffled anew each epoch, with some prompts held out."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

from headrace.actors.dispatcher.sources.prompt_fingerprint import prompt_fingerprint
from headrace.actors.records import JsonLinesRecords, Records
from headrace.actors.session import ChatMessage, Task
from headrace.actors.tasks.plain_json import to_json
from headrace.actors.tasks.seeds import derived_seed


class RecordSource:
    """records: where they come from. prompt_field: its text, or a list of {"role", "content"}. answer_field: the gold
    answer, None for none; answer_after: only what follows the last of these marks ("####" of GSM8K) is the answer.
    class_field: the task's class, by which figures are told apart; None: all are of one, the source's name.
    system: a system message put before text prompts. seed: of the order. held_out_size: prompts kept out of training,
    chosen by `held_out_seed` and the prompt alone. Other fields of a record become the task's entry. Records are read
    at first use and kept.
    """

    def __init__(
        self,
        *,
        records: Records,
        prompt_field: str = "prompt",
        answer_field: str | None = "answer",
        answer_after: str | None = None,
        class_field: str | None = None,
        system: str = "",
        seed: int = 0,
        held_out_seed: int = 1,
        held_out_size: int = 0,
    ) -> None:
        if held_out_size < 0:
            raise ValueError(f"held_out_size must be >= 0, got {held_out_size}")
        if answer_after is not None and (not answer_after or answer_field is None):
            raise ValueError(
                f"answer_after must be a mark in the answer_field, got {answer_after!r} with answer_field="
                f"{answer_field!r}; null takes the whole answer"
            )
        self._records = records
        self._prompt_field = prompt_field
        self._answer_field = answer_field
        self._answer_after = answer_after
        self._class_field = class_field
        self._system = system
        self._seed = seed
        self._held_out_seed = held_out_seed
        self._held_out_size = held_out_size

    def task(self, index: int) -> Task:
        """Training task `index`; each epoch passes over every training record once, in another order."""
        if index < 0:
            raise IndexError(f"a task index must be >= 0, got {index}")
        training, _ = self._split
        if not training:
            raise ValueError(
                f"{self._name}: held_out_size={self._held_out_size} leaves none to train on of its prompts; lower it"
            )
        epoch, place = divmod(index, len(training))
        return training[self._order(epoch)[place]]

    def held_out(self, num: int) -> list[Task]:
        """The first `num` held-out tasks. Raises ValueError past held_out_size."""
        if not 0 <= num <= self._held_out_size:
            raise ValueError(f"{num} held-out tasks were asked for, held_out_size is {self._held_out_size}; raise it")
        return self._split[1][:num]

    def fingerprint(self) -> str:
        settings = [self._prompt_field, self._answer_field, self._answer_after, self._class_field, self._system]
        seeds = [self._seed, self._held_out_seed, self._held_out_size]
        described = json.dumps([settings, seeds, self._records.fingerprint()])
        return hashlib.blake2b(described.encode(), digest_size=16).hexdigest()

    def _order(self, epoch: int) -> list[int]:
        if self._latest_order[0] != epoch:
            places = list(range(len(self._split[0])))
            Random(derived_seed("order", self._seed, epoch)).shuffle(places)
            self._latest_order = (epoch, places)
        return self._latest_order[1]

    _latest_order: tuple[int, list[int]] = (-1, [])

    @functools.cached_property
    def _name(self) -> str:
        parts = [part.rpartition("/")[2] for part in self._records.parts()]
        return parts[0] if len(parts) == 1 else f"{parts[0]} and {len(parts) - 1} more"

    @functools.cached_property
    def _split(self) -> tuple[list[Task], list[Task]]:
        """(training tasks, held-out tasks): all records of one prompt are on one side; held out is one of each."""
        by_prompt: dict[str, list[Task]] = {}
        for task in self._read():
            by_prompt.setdefault(prompt_fingerprint(task.prompt), []).append(task)
        ranked = sorted(by_prompt, key=lambda prompt: derived_seed(self._held_out_seed, prompt))
        if len(ranked) < max(1, self._held_out_size):
            raise ValueError(
                f"{self._name} holds {len(ranked)} distinct prompts, and held_out_size={self._held_out_size} asks for "
                "more; lower it"
            )
        chosen = set(ranked[: self._held_out_size])
        training = [task for prompt, tasks in by_prompt.items() if prompt not in chosen for task in tasks]
        return training, [by_prompt[prompt][0] for prompt in ranked[: self._held_out_size]]

    def _read(self) -> Iterator[Task]:
        number = 0
        for part in self._records.parts():
            for in_part, (record, _) in enumerate(self._records.read(part), start=1):
                number += 1
                yield self._parse(record, number, f"{part}, record {in_part}")

    def _parse(self, record: Any, number: int, place: str) -> Task:
        used = [f for f in (self._prompt_field, self._answer_field, self._class_field) if f is not None]
        for field in used:
            if not isinstance(record, Mapping) or field not in record:
                has = sorted(record) if isinstance(record, Mapping) else repr(record)[:80]
                raise ValueError(f"{place} has no field {field!r}; it has {has}")
        rest = {str(key): to_json(value, str(key)) for key, value in record.items() if key not in used}
        return Task(
            task_id=f"record/{number}",
            source=self._name if self._class_field is None else str(record[self._class_field]),
            prompt=self._messages(record[self._prompt_field], place),
            answer=self._answer(record, place),
            entry=rest,
        )

    def _answer(self, record: Mapping[str, Any], place: str) -> str | None:
        if self._answer_field is None or record[self._answer_field] is None:
            return None
        answer = str(record[self._answer_field])
        if self._answer_after is None:
            return answer
        _, mark, after = answer.rpartition(self._answer_after)
        if not mark:
            raise ValueError(f"{place}: its answer has no {self._answer_after!r}, got {answer!r:.100}")
        return after.strip()

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


class JsonLinesSource(RecordSource):
    """path: the file, or a glob. The rest: see RecordSource."""

    def __init__(
        self,
        *,
        path: str,
        prompt_field: str = "prompt",
        answer_field: str | None = "answer",
        answer_after: str | None = None,
        class_field: str | None = None,
        system: str = "",
        seed: int = 0,
        held_out_seed: int = 1,
        held_out_size: int = 0,
    ) -> None:
        super().__init__(
            records=JsonLinesRecords(path),
            prompt_field=prompt_field,
            answer_field=answer_field,
            answer_after=answer_after,
            class_field=class_field,
            system=system,
            seed=seed,
            held_out_seed=held_out_seed,
            held_out_size=held_out_size,
        )
