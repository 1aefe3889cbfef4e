"""The monitor actor: takes metrics from everyone, asks everyone where its time goes, and writes both down; where
nothing moves any more, it finds out why (stall_watch.py).

It never holds anyone up: its mailbox drops the oldest record when it falls behind, and the count of those is in
activity.json.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path

from headrace.actors.messages import Metrics
from headrace.actors.monitor.activity import ActivityBook
from headrace.actors.monitor.console import ConsoleLine
from headrace.actors.monitor.metrics_file import MetricsFile, last_time_s
from headrace.actors.monitor.stall_watch import StallWatch
from headrace.actors.monitor.tensorboard import TensorBoardFile
from headrace.transport import ActivityQuery, ActivitySnapshot, Actor, Context, MailboxBound, handles

logger = logging.getLogger(__name__)

_QUERY_TIMEOUT_S = 2.0
_FLUSH_EVERY_S = 1.0
_LAUNCHER_ROLES = frozenset(("supervisor", "node"))
"""They wait for the others' ends: their time says nothing of the run."""


class Monitor(Actor):
    """`run_dir`: metrics.jsonl, activity.json, stalls.jsonl and tensorboard/ go there. `console_every_s` 0: no console
    lines. `stall_s`: a run in which nothing moves for so long is looked into, and told who waits for whom; 0 never."""

    mailbox = MailboxBound(capacity=20_000, overflow="drop_oldest")

    def __init__(
        self,
        *,
        run_dir: str,
        tensorboard: bool = True,
        console_every_s: float = 5.0,
        activity_every_s: float = 1.0,
        stall_s: float = 60.0,
    ) -> None:
        if console_every_s < 0:
            raise ValueError(f"console_every_s must be >= 0, got {console_every_s}; 0 prints no lines")
        if activity_every_s <= 0:
            raise ValueError(f"activity_every_s must be > 0, got {activity_every_s}")
        if stall_s < 0:
            raise ValueError(f"stall_s must be >= 0, got {stall_s}; 0 never looks for a stall")
        self._run_dir = Path(run_dir)
        self._with_tensorboard = tensorboard
        self._console_every_s = console_every_s
        self._activity_every_s = activity_every_s
        self._stall_s = stall_s
        self._console = ConsoleLine()
        self.activity_book = ActivityBook()
        self._tensorboard: TensorBoardFile | None = None
        self._stalls: StallWatch | None = None

    async def on_start(self, context: Context) -> None:
        self._started_s = context.clock.time() - last_time_s(self._run_dir / "metrics.jsonl")
        self._metrics = MetricsFile(self._run_dir / "metrics.jsonl")
        if self._with_tensorboard:
            self._tensorboard = await context.run_blocking(TensorBoardFile, self._run_dir / "tensorboard")
        context.spawn(self._flush(), "flush")
        context.spawn(self._account(), "account for time")
        if self._stall_s:
            self._stalls = StallWatch(
                context,
                self._run_dir / "stalls.jsonl",
                stall_s=self._stall_s,
                time_s=self._time_s,
                known=lambda: self.activity_book.newest,
            )
            context.spawn(self._stalls.run(), "look for stalls")
        if self._console_every_s:
            context.spawn(self._print(), "console")

    async def on_stop(self) -> None:
        await self._poll()
        self._metrics.close()
        if self._tensorboard is not None:
            self._tensorboard.close()

    @handles(Metrics)
    async def take(self, record: Metrics) -> None:
        """Every record is kept, whatever its step: late, repeated or out of order."""
        self._metrics.write(record, time_s=self._time_s())
        self._console.take(record)
        if self._stalls is not None:
            self._stalls.take(record)
        if self._tensorboard is not None:
            self._tensorboard.write(record)

    def _time_s(self) -> float:
        return self.context.clock.time() - self._started_s

    async def _flush(self) -> None:
        while True:
            await self.context.clock.sleep(_FLUSH_EVERY_S)
            self._metrics.flush()

    async def _print(self) -> None:
        while True:
            await self.context.clock.sleep(self._console_every_s)
            logger.info(self._console.line(time_s=self._time_s(), roles=self.activity_book.roles()))

    async def _account(self) -> None:
        while True:
            await self.context.clock.sleep(self._activity_every_s)
            await self._poll()

    async def _poll(self) -> None:
        """Ask every actor; one that does not answer in time keeps its last snapshot."""
        roles = {name.partition("/")[0] for name in self.context.everybody()} - _LAUNCHER_ROLES
        asks = [self.context.group(role).ask_all(ActivityQuery(), timeout_s=_QUERY_TIMEOUT_S) for role in sorted(roles)]
        for replies in await asyncio.gather(*asks):
            for reply in replies.values():
                if isinstance(reply, ActivitySnapshot):
                    self.activity_book.take(reply)
        staged = self._run_dir / ".activity.json"
        staged.write_text(json.dumps(self.activity_book.as_json(), indent=1) + "\n", encoding="utf-8")
        os.replace(staged, self._run_dir / "activity.json")
