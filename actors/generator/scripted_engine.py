"""An engine without a model: replays token ids, log-probs, finish reasons, delays and failures (tests, simulation).

It obeys the Engine protocol to the letter (context limit, versions by token, updates in flight, death), so that what
passes with it fails only for numerical reasons with a real one. Time is the event loop's: virtual in `run_virtual`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from headrace.actors.generator.engine import CommitTimings, EngineDied, StageTimings
from headrace.actors.generator.group_ranks import Broadcast
from headrace.actors.generator.limits import check_request
from headrace.actors.messages import Completion, Generate, JoinGroup
from headrace.transport.weights import Manifest, WeightsMismatch
from headrace.transport.weights.collective import HEADRACE


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """What one request gets. `failure` is raised after the delays instead of an answer.
    logprobs None: -0.5 for each token. versions None: the version in service when each token is due."""

    token_ids: tuple[int, ...] = (1,)
    logprobs: tuple[float, ...] | None = None
    finish_reason: Literal["stop", "length", "aborted"] = "stop"
    first_token_s: float = 0.0
    token_s: float = 0.0
    failure: Exception | None = None
    versions: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name, values in (("logprobs", self.logprobs), ("versions", self.versions)):
            if values is not None and len(values) != len(self.token_ids):
                raise ValueError(f"a scripted turn of {len(self.token_ids)} tokens has {len(values)} {name}")


Script = Callable[[Generate], ScriptedTurn] | Sequence[ScriptedTurn]


class ScriptedRanks:
    """Workers that hold no bytes. `fail_next_join` is raised once; `progress` is what an abort reports."""

    def __init__(self, num_ranks: int = 1, kind: str = HEADRACE) -> None:
        self.num_ranks = num_ranks
        self.kind = kind
        self.joined: list[str] = []
        self.aborted: list[str] = []
        self.progress = 2
        self.fail_next_join: Exception | None = None

    async def count(self) -> int:
        return self.num_ranks

    async def join(self, message: JoinGroup) -> None:
        failure, self.fail_next_join = self.fail_next_join, None
        if failure is not None:
            raise failure
        self.joined.append(message.group)

    async def abort(self, group: str) -> int:
        self.aborted.append(group)
        return self.progress


class ScriptedEngine:
    """script: a function of the request, or turns that are handed out in the order of arrival, the last one for ever.
    pause_s: how long each commit lasts; no token is due meanwhile. Everything else may be changed while it runs:
    `fail_next_stage`, `fail_next_commit` (raised once), `die(reason)`."""

    def __init__(
        self,
        *,
        script: Script = (ScriptedTurn(),),
        context_tokens: int = 4096,
        start_s: float = 0.0,
        stage_s: float = 0.0,
        pause_s: float = 0.0,
        num_ranks: int = 1,
        group_kind: str = HEADRACE,
    ) -> None:
        if not callable(script) and not script:
            raise ValueError("a script needs at least one turn")
        self._script = script
        self._context_tokens = context_tokens
        self._start_s = start_s
        self._stage_s = stage_s
        self._pause_s = pause_s
        self.ranks = ScriptedRanks(num_ranks, group_kind)
        self._version = 0
        self._staged: int | None = None
        self._death: str | None = "it was not started"
        self._running: set[asyncio.Future[None]] = set()
        self._resumed: asyncio.Event | None = None
        self.fail_next_stage: Exception | None = None
        self.fail_next_commit: Exception | None = None
        self.requests: list[Generate] = []
        self.commits: list[int] = []
        self.closed = False

    @property
    def version(self) -> int:
        return self._version

    @property
    def num_running(self) -> int:
        return len(self._running)

    async def start(self) -> None:
        await asyncio.sleep(self._start_s)
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._death = None

    async def generate(self, request: Generate) -> Completion:
        self._check_alive()
        check_request(request, self._context_tokens)
        turn = self._turn(len(self.requests), request)
        self.requests.append(request)
        died = asyncio.get_running_loop().create_future()
        self._running.add(died)
        try:
            return await self._play(turn, request, died)
        finally:
            self._running.discard(died)

    def _turn(self, number: int, request: Generate) -> ScriptedTurn:
        if callable(self._script):
            return self._script(request)
        return self._script[min(number, len(self._script) - 1)]

    async def _play(self, turn: ScriptedTurn, request: Generate, died: asyncio.Future[None]) -> Completion:
        limit = request.sampling.max_tokens
        token_ids = turn.token_ids[:limit]
        versions: list[int] = []
        await self._pass(turn.first_token_s, died)
        for _ in token_ids:
            await self._pass(turn.token_s, died)
            versions.append(self._version)
        if turn.failure is not None:
            raise turn.failure
        logprobs = turn.logprobs if turn.logprobs is not None else (-0.5,) * len(turn.token_ids)
        return Completion(
            token_ids=np.asarray(token_ids, dtype=np.int32),
            logprobs=np.asarray(logprobs[:limit], dtype=np.float32),
            versions=np.asarray(versions if turn.versions is None else turn.versions[:limit], dtype=np.int32),
            finish_reason="length" if len(turn.token_ids) > limit else turn.finish_reason,
            prompt_logprobs=np.full(
                len(request.prompt_token_ids) - 1 if request.prompt_logprobs else 0, -0.5, dtype=np.float32
            ),
        )

    async def _pass(self, seconds: float, died: asyncio.Future[None]) -> None:
        """Let time pass, and a pause; raises EngineDied as soon as the engine dies."""
        if seconds > 0:
            await asyncio.wait({died}, timeout=seconds)
        assert self._resumed is not None
        await self._resumed.wait()
        self._check_alive()

    async def stage_weights(self, manifest: Manifest) -> StageTimings:
        self._check_alive()
        await asyncio.sleep(self._stage_s)
        failure, self.fail_next_stage = self.fail_next_stage, None
        if failure is not None:
            raise failure
        self._staged = manifest.version
        return StageTimings(send_s=self._stage_s)

    async def commit_weights(self, manifest: Manifest) -> CommitTimings:
        self._check_alive()
        assert self._resumed is not None
        if self._staged != manifest.version:
            raise WeightsMismatch(f"version {manifest.version} is not staged; stage_weights comes first")
        self._staged = None
        running = self.num_running
        self._resumed.clear()
        try:
            await asyncio.sleep(self._pause_s)
            failure, self.fail_next_commit = self.fail_next_commit, None
            if failure is not None:
                raise failure
            self._version = manifest.version
            self.commits.append(manifest.version)
        finally:
            self._resumed.set()
        return CommitTimings(self._pause_s, self._pause_s, running)

    async def receive_weights(self, manifest: Manifest, broadcast: Broadcast) -> StageTimings:
        return await self.stage_weights(manifest)

    async def load_arriving(self, manifest: Manifest, broadcast: Broadcast) -> CommitTimings:
        await self.stage_weights(manifest)
        return await self.commit_weights(manifest)

    def die(self, reason: str = "scripted death") -> None:
        """Every pending and later request raises EngineDied."""
        self._death = reason
        for died in self._running:
            if not died.done():
                died.set_result(None)

    async def close(self) -> None:
        self.closed = True
        if self._death is None:
            self.die("it was closed")

    def _check_alive(self) -> None:
        if self._death is not None:
            raise EngineDied(f"the scripted engine cannot serve: {self._death}")
