"""Publishes versions that say which they are, and does to them and to the generators what the plan says. Stands in the
place of the learner: the parameter server tells it what is served, refused and released.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import numpy as np

from headrace.actors.messages import (
    Accepted,
    PublishWeights,
    RunFinished,
    VersionServed,
    WeightsRefused,
    WeightsReleased,
)
from headrace.transport import Actor, Context, handles
from headrace.transport.weights import SenderSettings, StagedVersion, WeightSender, make_sender
from identifying.faults import DAMAGES, kill_a_generator
from identifying.messages import Readings, Serves, WhatWasRead, WhoServes
from identifying.plan import Update, draw_plan
from identifying.weights import tensors_of

READER = "dispatcher/0"
FIGURES = "figures.json"
UPDATE_TIMEOUT_S = 300.0
"""A generator that was killed starts again meanwhile."""
ASK_TIMEOUT_S = 180.0
FIRST_STARTING_S = 10.0
"""of a generator's start, into which a kill may fall"""


class IdentifyingLearner(Actor):
    """folder: of the run; its figures are written there. settle_s: at most so long between two updates."""

    def __init__(
        self, *, folder: str, run_id: str, num_updates: int, num_kills: int, seed: int = 0, settle_s: float = 0.1
    ) -> None:
        self._folder = Path(folder)
        self._run_id = run_id
        self._plan = draw_plan(seed, num_updates, num_kills, settle_s=settle_s)
        self._generator = np.random.default_rng([seed, 1])
        self._version = self._served = self._refused = 0
        self._faults: Counter[str] = Counter()
        self._kills: Counter[str] = Counter()
        self._problems: list[str] = []
        self._failed: list[int] = []
        self._update_s: list[float] = []

    async def on_start(self, context: Context) -> None:
        self._changed = asyncio.Event()
        self._sender: WeightSender = make_sender("shm", SenderSettings(run_id=self._run_id, num_buffers=3))
        context.spawn(self._work(), "updates")

    async def on_stop(self) -> None:
        self._sender.close()

    @handles(VersionServed)
    async def version_served(self, message: VersionServed) -> Accepted:
        if message.version in self._failed:
            self._problems.append(f"version {message.version} was damaged, and is served")
        self._served = max(self._served, message.version)
        self._notify()
        return Accepted()

    @handles(WeightsRefused)
    async def weights_refused(self, message: WeightsRefused) -> Accepted:
        self._refused = max(self._refused, message.version)
        self._notify()
        return Accepted()

    @handles(WeightsReleased)
    async def weights_released(self, message: WeightsReleased) -> Accepted:
        self._sender.release(message.version)
        self._notify()
        return Accepted()

    async def _work(self) -> None:
        await self.context.group("generator").wait_for(1, timeout_s=UPDATE_TIMEOUT_S)
        began_s = time.monotonic()
        for update in self._plan:
            await self._publish(update)
        readings: Readings = await self.context.ask(READER, WhatWasRead(), timeout_s=ASK_TIMEOUT_S)
        claimed = sorted(set(readings.versions) & set(self._failed))
        if claimed:
            self._problems.append(f"tokens claim the damaged versions {claimed}")
        figures = {
            "updates": len(self._plan),
            "kills": self._kills.total(),
            "failed_updates": len(self._failed),
            "seconds": round(time.monotonic() - began_s, 1),
            "update_s": float(np.median(self._update_s)),
            "killed": dict(self._kills),
            "faults": dict(self._faults),
            **asdict(readings),
            "problems": [*self._problems, *readings.problems],
            "versions": len(readings.versions),
        }
        (self._folder / FIGURES).write_text(json.dumps(figures, indent=1))
        await self.context.ask("supervisor/0", RunFinished("all updates are made"), timeout_s=30)

    async def _publish(self, update: Update) -> None:
        version = self._version = self._version + 1
        if update.kill == "while it starts":
            self._kill(update.kill)
            await asyncio.sleep(update.fraction * FIRST_STARTING_S)
        staged = await self._staged(version)
        manifest = staged.seal()
        if update.fault is not None:
            self._failed.append(version)
            self._faults[update.fault] += 1
            manifest = DAMAGES[update.fault](manifest, self._generator)
        began_s = time.monotonic()
        await self.context.ask("parameter_server/0", PublishWeights(manifest), timeout_s=ASK_TIMEOUT_S)
        if update.kill is not None:
            usual_s = float(np.median(self._update_s[-20:] or [0.1]))
            if update.kill == "while it decodes":
                await self._outcome(version)
            await asyncio.sleep(update.fraction * usual_s)
            self._kill(update.kill)
        if not update.hurried:
            await self._outcome(version)
            if update.kill is None and update.fault is None:
                self._update_s.append(time.monotonic() - began_s)
            await self._who_serves()
        await asyncio.sleep(update.settle_s)

    async def _staged(self, version: int) -> StagedVersion:
        while True:
            staged = self._sender.stage(tensors_of(version), version=version, step=version)
            if staged is not None:
                return staged
            await self._wait(self._changed, f"a free buffer for version {version}")

    async def _outcome(self, version: int) -> None:
        """Served where it is sound, refused where it is not."""
        while self._served < version and self._refused < version:
            await self._wait(self._changed, f"version {version}")
        if self._refused >= version and version not in self._failed:
            self._problems.append(f"version {version} is sound, and was refused")

    async def _who_serves(self) -> None:
        """After an update that failed the version before it answers; otherwise the new one."""
        serves: Serves = await self.context.ask(READER, WhoServes(), timeout_s=UPDATE_TIMEOUT_S)
        if serves.version != self._served or not serves.token_is_right:
            self._problems.append(f"version {self._served} is served, but {serves} answers")

    def _kill(self, moment: str) -> None:
        if kill_a_generator(self._folder, self._generator):
            self._kills[moment] += 1

    async def _wait(self, changed: asyncio.Event, what: str) -> None:
        try:
            async with asyncio.timeout(UPDATE_TIMEOUT_S):
                await changed.wait()
        except TimeoutError as error:
            raise TimeoutError(f"nothing was heard for {UPDATE_TIMEOUT_S:g} s, waiting for {what}") from error

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
