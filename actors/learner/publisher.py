"""How weights leave the learner: copied into a free buffer (all that training waits for), sealed with checksums in a
thread of its own, announced to the parameter server, released when nobody reads.

In async mode a publication never waits: where no buffer is free it is skipped and counted, and the next step tries
again (latest only, nothing queues). The first, the last, and in sync mode every publication waits for a buffer.
Waits here end by `released` and `served`, which the actor's handlers call, or by their deadline. It runs while a
generator lives: an engine that still starts, or starts again, is not late.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace.actors.learner.versions import VersionLog
from headrace.actors.messages import Metrics, PublishWeights, WithdrawWeights
from headrace.transport import Context, DeadlineExceeded, PeerLost, Refused, TransportError, insist
from headrace.transport.weights import Manifest, Probe

if TYPE_CHECKING:
    from headrace.transport.weights import StagedVersion, WeightSender

logger = logging.getLogger(__name__)

PARAMETER_SERVER = "parameter_server"
GENERATOR = "generator"
MONITOR = "monitor"
ENGINE_START_S = 86_400.0
"""far beyond what any engine takes; the launcher ends the run where one does not start (launch.start_timeout_s)"""

_ANNOUNCE_TIMEOUT_S = 30.0
"""The parameter server answers at once: what stays out for so long was lost."""
_ANNOUNCE_PAUSE_S = 0.5

PendingProbe = Callable[[], Awaitable[Probe | None]]
"""computes what goes with a version; keeps its weights from changing until it has"""

MAX_REFUSALS = 3
"""versions in a row that no generator could take; one more attempt would hardly end otherwise"""


class PublicationRefused(RuntimeError):
    """Version after version, not one generator could take the weights. Says why."""


class PublicationTimeout(TimeoutError):
    """A version that had to be published or served was not, within the deadline. Says which and what was waited for."""


@dataclass(frozen=True, slots=True)
class _Staged:
    """A copy that is not sealed yet, the probe that goes with it, still to be computed, and how long the learner was
    held up."""

    copy: StagedVersion
    probe: PendingProbe | None
    stage_s: float


class Publisher:
    """`tensors` gives the weights under the names that engines know. `run` runs a function where the weights may be
    read (the learner's worker thread, between steps). A publication is due after `every_steps`, and after `every_s`
    where that is given too. Without `staging` there is one buffer: each publication waits until it is free and then
    until the version is served. `probe` is called where a version is staged, between two steps, and what it returns is
    awaited beside training: it keeps those weights from changing until it is done. A wait for members takes
    at most `timeout_s` and what the newest version's bytes take at `min_mb_per_s`."""

    def __init__(
        self,
        context: Context,
        sender: WeightSender,
        versions: VersionLog,
        *,
        tensors: Callable[[], Mapping[str, Any]],
        run: Callable[..., Any],
        every_steps: int,
        every_s: float | None = None,
        staging: bool = True,
        dtype: str | None,
        probe: Callable[[int], PendingProbe | None] = lambda version: None,
        timeout_s: float,
        min_mb_per_s: float = float("inf"),
    ) -> None:
        self._context = context
        self._sender = sender
        self._versions = versions
        self._tensors = tensors
        self._run = run
        self._every_steps = every_steps
        self._every_s = every_s
        self._staging = staging
        self._withdrawing = False
        self._dtype = dtype
        self._probe = probe
        self._timeout_s = timeout_s
        self._min_mb_per_s = min_mb_per_s
        self._changed = asyncio.Event()
        self._version, self._version_step, self._staged_at_s = 0, -1, 0.0
        self._newest: Manifest | None = None
        self._one_seal = asyncio.Lock()
        self._unannounced: Manifest | None = None
        self._held: set[int] = set()
        self._server: str | None = None
        self._num_released = 0
        self._num_refused = 0
        self._refused_version = 0
        self._skipped_step = -1
        self.served_version = 0
        self.num_published = 0
        self.num_skipped = 0
        self.num_failed = 0

    @property
    def version(self) -> int:
        """The newest version staged by this learner; 0 before the first."""
        return self._version

    @property
    def version_step(self) -> int:
        """The step that `version` holds; −1 before the first."""
        return self._version_step

    def due_in_s(self, step: int) -> float:
        """Seconds until a publication of `step` is due: 0 now, infinity where more steps are needed first."""
        if step - self._version_step < self._every_steps:
            return float("inf")
        if self._every_s is None or not self._version:
            return 0.0
        return max(0.0, self._staged_at_s + self._every_s - self._context.clock.time())

    def is_due(self, step: int) -> bool:
        return self.due_in_s(step) <= 0

    async def publish_if_due(self, step: int) -> bool:
        """Publish where it is due and a buffer is free. Never waits for one: the next step, or the same one again,
        tries anew."""
        if not self.is_due(step):
            return False
        if not self._staging:
            await self.wait_served(await self.publish(step))
            return True
        staged = await self._stage(lambda: step)
        if staged is None:
            self.num_skipped += step != self._skipped_step
            self._skipped_step = step
            return False
        self._context.spawn(self._send(staged), f"announce version {staged.copy.version}")
        return True

    async def publish(self, step: int) -> int:
        """Publish now, waiting for a buffer; returns the version. Raises PublicationTimeout."""
        while True:
            released = self._num_released
            staged = await self._stage(lambda: step)
            if staged is not None:
                await self._send(staged)
                return staged.copy.version
            if not self._staging:
                await self._withdraw()
            await self._until_released(released, f"the weights of step {step}")

    async def wait_served(self, version: int) -> None:
        """Until generators serve `version` or a newer one. Raises PublicationTimeout."""
        await self._until(lambda: self.served_version >= version, f"no generator has acknowledged version {version}")

    def served(self, version: int) -> None:
        self.served_version = max(self.served_version, version)
        self._num_refused = 0
        self._notify()

    def refused(self, version: int, reason: str, *, step: Callable[[], int]) -> None:
        """No generator took that version (its bytes are gone, an engine hangs): the weights of `step()` are published
        anew, at once, for a run that waits for sessions of a newer version comes to no further step."""
        if version != self.version or version == self._refused_version:
            return  # a newer one is on its way, or soon
        self._refused_version = version
        self._num_refused += 1
        self._context.spawn(self._publish_anew(version, reason, step), f"publish anew after version {version}")

    def released(self, version: int) -> None:
        self._sender.release(version)
        self._held.discard(version)
        self._num_released += 1
        self._notify()

    def server_up(self, incarnation: str) -> None:
        """A parameter server that was restarted knows nothing: it gets the newest version again."""
        restarted = self._server is not None and self._server != incarnation
        self._server = incarnation
        if restarted and self._withdrawing and self._newest is not None:
            self.released(self._newest.version)  # nobody begins with it any more, and who reads it finds it changed
        elif restarted and self._newest is not None:
            for version in self._held - {self._newest.version}:
                self.released(version)  # the one that would have said so is gone
            self._context.spawn(self._announce(self._newest), f"announce version {self._newest.version} again")

    def figures(self) -> dict[str, float]:
        return {
            "publications/published": float(self.num_published),
            "publications/skipped": float(self.num_skipped),
            "publications/failed": float(self.num_failed),
        }

    async def _publish_anew(self, version: int, reason: str, step: Callable[[], int]) -> None:
        if self._num_refused >= MAX_REFUSALS:
            raise PublicationRefused(
                f"no generator could take any of the last {self._num_refused} versions; version {version} failed on "
                f"{reason}; see the generators' logs"
            )
        while self.version == version:
            released = self._num_released
            staged = await self._stage(step)
            if staged is not None:
                logger.warning("version %d was refused (%s); version %d follows", version, reason, staged.copy.version)
                return await self._send(staged)
            if not self._staging:
                await self._withdraw()
            await self._until_released(released, f"the weights after version {version}")

    async def _stage(self, step: Callable[[], int]) -> _Staged | None:
        if self._unannounced is not None:
            self.released(self._unannounced.version)
            self._unannounced = None
        staged: _Staged | None = await self._run("stage", self._stage_now, step)
        if staged is not None:
            self._withdrawing = False
            self._version, self._version_step = staged.copy.version, staged.copy.step
            self._staged_at_s = self._context.clock.time()
            self.num_published += 1
        return staged

    def _stage_now(self, step: Callable[[], int]) -> _Staged | None:
        version, now = self._versions.newest + 1, step()
        clock = self._context.clock
        started_s = clock.time()
        copy = self._sender.stage(self._tensors(), version=version, step=now, dtype=self._dtype)
        if copy is None:
            return None
        self._versions.claim(now)
        probe = self._probe(version)
        return _Staged(copy, probe, stage_s=clock.time() - started_s)

    async def _send(self, staged: _Staged) -> None:
        """The learner may be training on meanwhile."""
        clock = self._context.clock
        values = {"learner_stage_s": staged.stage_s}

        async def computed() -> Probe | None:
            if staged.probe is None:
                return None
            started_s = clock.time()
            probe = await staged.probe()
            values["learner_probe_s"] = clock.time() - started_s
            return probe

        probing = asyncio.ensure_future(computed())  # before any wait: the next step does not end until it is done
        async with self._one_seal:  # versions are announced in their order, probed or not
            probe = await probing
            started_s = clock.time()
            sealed: Manifest = await self._context.run_blocking(staged.copy.seal, label="seal")
            values["learner_seal_s"] = clock.time() - started_s
            manifest = replace(sealed, probe=probe)
            self._newest = manifest
            self._held.add(manifest.version)
        values["nbytes"] = float(manifest.nbytes)
        self._context.tell_soon(MONITOR, Metrics("weights/learner", "version", manifest.version, values))
        await self._announce(manifest)

    async def _withdraw(self) -> None:
        """Ask for the one buffer back, until it is said that it is wanted; WeightsReleased follows."""
        self._withdrawing = True
        try:
            await insist(
                self._context,
                PARAMETER_SERVER,
                WithdrawWeights(),
                timeout_s=_ANNOUNCE_TIMEOUT_S,
                patience_s=self._timeout_s,
            )
        except TransportError as error:
            raise PublicationTimeout(f"the parameter server did not give the one buffer back: {error}") from error

    async def _announce(self, manifest: Manifest) -> None:
        try:
            timeout_s = min(self._timeout_s, _ANNOUNCE_TIMEOUT_S)
            await self._context.ask(PARAMETER_SERVER, PublishWeights(manifest), timeout_s=timeout_s)
        except TransportError as error:
            # The run goes on with the version in service. This one keeps its buffer until the next takes it, and is
            # announced again until then: a run that waits for its sessions comes to no next one.
            if manifest is not self._unannounced:
                self.num_failed += 1
                logger.warning("version %d was not published: %s", manifest.version, error)
            if manifest is self._newest:
                self._unannounced = manifest
                if isinstance(error, (PeerLost, Refused, DeadlineExceeded)):
                    self._context.spawn(self._announce_again(manifest), f"announce version {manifest.version} again")
            else:
                self.released(manifest.version)
        else:
            if manifest is self._unannounced:
                self._unannounced = None

    async def _announce_again(self, manifest: Manifest) -> None:
        await self._context.clock.sleep(_ANNOUNCE_PAUSE_S)
        if manifest is self._unannounced:
            await self._announce(manifest)

    async def _until_released(self, released: int, what: str) -> None:
        await self._until(lambda: self._num_released > released, f"no staging buffer became free for {what}")

    async def _until(self, done: Callable[[], bool], what: str) -> None:
        generators = self._context.group(GENERATOR)
        timeout_s = self._timeout_s
        if self._newest is not None:
            timeout_s += self._newest.travel_s(self._min_mb_per_s)
        with self._context.activity.waiting(PARAMETER_SERVER, what):
            while not done():
                await generators.wait_for(1, timeout_s=ENGINE_START_S)
                try:
                    async with asyncio.timeout(timeout_s):
                        while not done():
                            await self._changed.wait()
                except TimeoutError as error:
                    if generators.members():
                        raise PublicationTimeout(
                            f"{what} within {timeout_s:.4g} s, though {', '.join(generators.members())} live; is "
                            "the parameter server alive? (learner.publish_timeout_s sets the limit)"
                        ) from error

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
