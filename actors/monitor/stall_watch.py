"""Watches that the run goes on; where it does not, asks everybody what they wait for, says why, and writes it down.

    nothing moved for `stall_s` ──▶ WaitQuery to all ──▶ diagnosis: a few lines in the log, all of it in stalls.jsonl

Once an episode, then at rising intervals, and once more when the run goes on. While it moves everybody is asked every
`stall_s` too: some actors may wait for each other in a circle beside it. Part of the monitor actor.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headrace.actors.messages import Metrics
from headrace.actors.monitor.diagnosis import Diagnosis, deadlock, diagnose
from headrace.actors.monitor.progress import Progress
from headrace.transport import ActivitySnapshot, Context, PeerLost, TransportError, UnknownActor, WaitQuery, WaitReport

logger = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 5.0
_LOOK_EVERY_S = 1.0
_MAX_CYCLES = 100
_SESSION_STATES = ("running", "grading", "ready", "training")


class StallWatch:
    """`time_s`: seconds since the monitor started, for what is written. `known`: what was last heard of each actor."""

    def __init__(
        self,
        context: Context,
        path: Path,
        *,
        stall_s: float,
        time_s: Callable[[], float],
        known: Callable[[], Mapping[str, ActivitySnapshot]],
    ) -> None:
        self._context = context
        self._path = path
        self._progress = Progress(stall_s)
        self._every_s = min(_LOOK_EVERY_S, stall_s / 4)
        self._time_s = time_s
        self._known = known
        self._sessions: dict[str, float] = {}
        self._seen_roles: set[str] = set()
        self._listened_s = 0.0
        self._episode = 0
        self._num_told = 0
        self._stall_s = stall_s
        self._looked_s = 0.0
        self._cycles: set[str] = set()

    def take(self, record: Metrics) -> None:
        self._progress.take(record, self._listened_s)
        if record.stream == "dispatcher":
            self._sessions = {name: record.values[name] for name in _SESSION_STATES if name in record.values}

    async def run(self) -> None:
        """For the actor's life. Time in which this process itself stood still hardly counts: the records of that time
        are still unread."""
        clock = self._context.clock
        while True:
            began_s = clock.time()
            await clock.sleep(self._every_s)
            self._listen(clock.time() - began_s, at_most_s=2 * self._every_s)
            self._seen_roles.update(name.partition("/")[0] for name in self._context.everybody())
            self._note_end()
            quiet_s = self._progress.look(self._listened_s)
            if quiet_s is not None:
                began_s = clock.time()
                await self._tell(quiet_s)
                self._listen(clock.time() - began_s, at_most_s=2 * ANSWER_TIMEOUT_S)
            elif self._listened_s - self._looked_s >= self._stall_s:
                self._looked_s = self._listened_s
                await self._look_for_a_deadlock()

    def _listen(self, seconds: float, *, at_most_s: float) -> None:
        self._listened_s += min(seconds, at_most_s)

    async def _tell(self, quiet_s: float) -> None:
        replies = await self._ask_everybody()
        found = diagnose(
            replies,
            quiet_s=quiet_s,
            asker=self._context.name,
            seen=self._seen_roles,
            pids={name: snapshot.pid for name, snapshot in self._known().items()},
        )
        self._num_told += 1
        self._cycles.add(found.culprit)
        self._log(found, quiet_s)
        self._write(
            {
                "episode": self._episode,
                "told": self._num_told,
                "quiet_s": quiet_s,
                "last_moved": self._progress.last_stream,
                "is_stall": found.is_stall,
                **asdict(found),
                "sessions": self._sessions,
                "actors": _as_fields(replies),
            }
        )

    async def _look_for_a_deadlock(self) -> None:
        replies = await self._ask_everybody()
        found = deadlock(replies, min_age_s=self._stall_s / 2, asker=self._context.name)
        if found is not None and found.culprit not in self._cycles and len(self._cycles) < _MAX_CYCLES:
            self._cycles.add(found.culprit)
            logger.warning("the run goes on, but %s", found.summary)
            self._write({"quiet_s": 0.0, "is_stall": False, **asdict(found), "actors": _as_fields(replies)})

    async def _ask_everybody(self) -> dict[str, WaitReport | str]:
        async def one(name: str) -> WaitReport | str | None:
            try:
                report: WaitReport = await self._context.ask(name, WaitQuery(), timeout_s=ANSWER_TIMEOUT_S)
            except (PeerLost, UnknownActor):
                return None  # it has gone meanwhile
            except TransportError as error:
                return f"{type(error).__name__}: {error}"
            return report

        names = self._context.everybody()
        replies = zip(names, await asyncio.gather(*map(one, names)), strict=True)
        return {name: reply for name, reply in replies if reply is not None}

    def _log(self, found: Diagnosis, quiet_s: float) -> None:
        states = ", ".join(f"{count:.0f} {state}" for state, count in self._sessions.items())
        lines = [*found.lines, f"sessions: {states}"] if states else [*found.lines]
        logger.log(
            logging.WARNING if found.is_stall else logging.INFO,
            "%s for %.0f s: %s%s",
            "the run has stood still" if found.is_stall else "nothing has moved",
            quiet_s,
            found.summary,
            "".join(f"\n    {line}" for line in lines) if found.is_stall else "",
        )

    def _note_end(self) -> None:
        lasted_s = self._progress.went_on()
        if lasted_s is not None:
            logger.info("the run goes on, after %.0f s (%s moves again)", lasted_s, self._progress.last_stream)
            self._write({"episode": self._episode, "lasted_s": lasted_s})
            self._episode += 1
            self._num_told = 0

    def _write(self, fields: dict[str, Any]) -> None:
        line = {"time_s": round(self._time_s(), 3), **fields}
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def _as_fields(replies: Mapping[str, WaitReport | str]) -> dict[str, Any]:
    return {name: reply if isinstance(reply, str) else asdict(reply) for name, reply in replies.items()}
