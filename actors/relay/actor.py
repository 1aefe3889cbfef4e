"""The relay of a host: generators ask it for a version that was staged on another node, and read what it brings from
shared memory of their own host. However many they are, a version crosses the network once.

Which copies are kept is holdings.py's, how a version comes is fetch.py's; this actor has one fetch at a time, in the
order in which versions were asked for. A fetch that nobody waits for any more is given up when another is wanted.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import ExitStack
from dataclasses import replace
from typing import NamedTuple

from headrace.actors.messages import LocalWeights, Metrics, WeightsLoaded, WeightsLocal
from headrace.actors.relay.fetch import Fetch, FetchSettings, Figures
from headrace.actors.relay.holdings import Holdings
from headrace.transport import Actor, Context, DeadlineExceeded, PeerDown, handles
from headrace.transport.weights import Manifest, same_weights
from headrace.transport.weights.carrier import check_num_buffers
from headrace.transport.weights.host_copies import HostCopies, HostCopy
from headrace.transport.weights.manifest import check_layout

logger = logging.getLogger(__name__)


class _UnderWay(NamedTuple):
    ended: asyncio.Future[None]
    task: asyncio.Task[None]


class Relay(Actor):
    """run_id: names the segments. delta: receive what changed against the newest version that is here; every
    `full_every` versions one comes whole all the same. num_buffers: versions in this host's shared memory: the newest,
    and the one that comes. buckets_in_flight, bucket_timeout_s, patience_s: see FetchSettings. buffer_timeout_s: how
    long a version waits until engines have given a buffer back. readers: roles that read here."""

    def __init__(
        self,
        *,
        run_id: str,
        delta: bool = False,
        full_every: int = 32,
        num_buffers: int = 2,
        buckets_in_flight: int = 4,
        bucket_timeout_s: float = 60.0,
        patience_s: float = 120.0,
        buffer_timeout_s: float = 60.0,
        readers: tuple[str, ...] = ("generator", "evaluator"),
    ) -> None:
        if full_every < 1:
            raise ValueError(f"relay.full_every must be >= 1 version, got {full_every}; 1 is whole versions only")
        check_num_buffers("relay.num_buffers", num_buffers, least=2)
        if not 0 < buffer_timeout_s < float("inf"):
            raise ValueError(f"relay.buffer_timeout_s must be > 0 seconds, got {buffer_timeout_s}")
        self._settings = FetchSettings(in_flight=buckets_in_flight, timeout_s=bucket_timeout_s, patience_s=patience_s)
        self._run_id = run_id
        self._delta = delta
        self._full_every = full_every
        self._num_buffers = num_buffers
        self._buffer_timeout_s = buffer_timeout_s
        self._readers = readers
        self._holdings = Holdings()
        self._copies: dict[int, HostCopy] = {}
        self._below: HostCopy | None = None
        self._fetches: dict[int, _UnderWay] = {}
        self._since_full = 0

    async def on_start(self, context: Context) -> None:
        name = f"{self._run_id}-relay-{context.index}"
        self._memory = HostCopies(name, num_buffers=self._num_buffers)
        self._memory_below = HostCopies(f"{name}-base", num_buffers=1)
        self._one_fetch = asyncio.Lock()
        self._freed = asyncio.Event()
        for role in self._readers:
            context.watch(role)

    async def on_stop(self) -> None:
        for under_way in list(self._fetches.values()):
            under_way.task.cancel()
        self._memory.close()
        self._memory_below.close()

    def metadata(self) -> dict[str, object]:
        """`node`: whose engines it serves."""
        return {"node": self.context.node}

    @handles(LocalWeights, concurrent=True)
    async def local(self, message: LocalWeights) -> WeightsLocal:
        """Raises (at the asker) WeightsMismatch where the version is gone or damaged, DeadlineExceeded where no buffer
        became free, TransportError where the source is not reached."""
        manifest = message.manifest
        check_layout(manifest)
        version = manifest.version
        self._holdings.need(message.reader, version)
        self._free()
        try:
            if version not in self._copies:
                await asyncio.shield(self._fetch(manifest))
        except BaseException:
            self._holdings.done(message.reader, version)
            raise
        return WeightsLocal(self._local_manifest(version))

    @handles(WeightsLoaded)
    async def loaded(self, message: WeightsLoaded) -> None:
        self._holdings.done(message.reader)
        self._free()

    @handles(PeerDown)
    async def peer_down(self, message: PeerDown) -> None:
        self._holdings.done(f"{message.name} {message.incarnation}")
        self._free()

    # --- fetching ---------------------------------------------------------------------------------------------------

    def _fetch(self, manifest: Manifest) -> asyncio.Future[None]:
        """The end of the fetch of that version, which begins here unless it is under way."""
        version = manifest.version
        for other, (_, task) in self._fetches.items():
            if other != version and not self._holdings.needed(other):
                task.cancel()
        if version not in self._fetches or self._fetches[version].task.cancelling():
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            task = self.context.spawn(self._bring(manifest, ended), f"fetch version {version}")
            self._fetches[version] = _UnderWay(ended, task)
        return self._fetches[version].ended

    async def _bring(self, manifest: Manifest, ended: asyncio.Future[None]) -> None:
        """Whatever it ends in is the waiters' to hear."""
        version = manifest.version
        try:
            await self._bring_in_turn(manifest)
        except Exception as error:
            logger.warning("version %d was not brought to node %s: %s", version, self.context.node, error)
            ended.set_exception(error)
            ended.exception()  # perhaps nobody waits any more
        except asyncio.CancelledError:
            ended.cancel()
            raise
        else:
            ended.set_result(None)
        finally:
            if version in self._fetches and self._fetches[version].ended is ended:
                del self._fetches[version]

    async def _bring_in_turn(self, manifest: Manifest) -> None:
        async with self._one_fetch:
            if manifest.adapter is not None and manifest.adapter.base is not None:
                await self._bring_below(manifest.version, manifest.adapter.base)
            await self._bring_whole(manifest)

    async def _bring_whole(self, manifest: Manifest) -> None:
        version = manifest.version
        started_s = self.context.clock.time()
        await self.context.run_blocking(self._memory.prepare, manifest.nbytes, label="make buffers")
        with ExitStack() as stack:
            copy = stack.enter_context(self._memory.filling(manifest))
            if copy is None:  # a slow engine still reads an older version: it delays only itself
                self._free(keep_newest=False)
                copy = await self._free_buffer(manifest, stack)
            base = self._base_of(manifest)
            if base is not None:
                stack.enter_context(self._holdings.pinned(base.source.version))
            fetch = Fetch(
                self.context,
                self._settings,
                version,
                manifest,
                copy.buffer,
                base=None if base is None else (base.source.version, base.buffer),
                keep=self._delta,
            )
            figures = await fetch.run()
        self._copies[version] = copy
        self._holdings.hold(version)
        self._since_full = 0 if base is None else self._since_full + 1
        self._free()
        self._report(manifest, figures, self.context.clock.time() - started_s)

    def _base_of(self, manifest: Manifest) -> HostCopy | None:
        """The newest version here, for a delta; None where one is to come whole."""
        newest = self._holdings.newest
        if not self._delta or newest is None or self._since_full + 1 >= self._full_every:
            return None
        copy = self._copies[newest]
        return copy if newest < manifest.version and copy.source.tensors == manifest.tensors else None

    async def _free_buffer(self, manifest: Manifest, stack: ExitStack) -> HostCopy:
        try:
            async with asyncio.timeout(self._buffer_timeout_s):
                while True:
                    copy = stack.enter_context(self._memory.filling(manifest))
                    if copy is not None:
                        return copy
                    self._freed.clear()
                    await self._freed.wait()
        except TimeoutError as error:
            raise DeadlineExceeded(
                f"no buffer of {self.context.name} became free for version {manifest.version} within "
                f"{self._buffer_timeout_s:g} s: its engines still load older ones; raise relay.num_buffers"
            ) from error

    async def _bring_below(self, version: int, base: Manifest) -> None:
        """The full weights below adapters: fetched once, kept until other ones are wanted."""
        if self._below is not None:
            if same_weights(self._below.source, base):
                return
            self._memory_below.release(self._below)
            self._below = None
        await self.context.run_blocking(self._memory_below.prepare, base.nbytes, label="make buffers")
        with self._memory_below.filling(base) as copy:
            assert copy is not None, "its one buffer is free"
            await Fetch(self.context, self._settings, version, base, copy.buffer, below=True).run()
        self._below = copy

    def _local_manifest(self, version: int) -> Manifest:
        manifest = self._copies[version].manifest
        adapter = manifest.adapter
        if adapter is not None and adapter.base is not None and self._below is not None:
            manifest = replace(manifest, adapter=replace(adapter, base=self._below.manifest))
        return manifest

    def _free(self, *, keep_newest: bool = True) -> None:
        """Give back the buffers of versions that nobody needs."""
        for version in self._holdings.take_free(keep_newest=keep_newest):
            self._memory.release(self._copies.pop(version))
            self._freed.set()

    def _report(self, manifest: Manifest, figures: Figures, fetch_s: float) -> None:
        values = {
            "fetch_s": fetch_s,
            "decode_s": figures.decode_s,
            "received_bytes": float(figures.nbytes),
            "nbytes": float(manifest.nbytes),
            "buckets_full": float(figures.full),
            "buckets_delta": float(figures.delta),
            "buckets_damaged": float(figures.damaged),
            "buckets_repeated": float(figures.repeated),
        }
        stream = f"weights/relay-{self.context.index}"
        self.context.tell_soon("monitor", Metrics(stream, "version", manifest.version, values))
