"""Keeps many requests in flight at the generators and holds every token to the version that it claims. Stands in the
place of the dispatcher, whom the parameter server tells of each version that is served. Imports no torch.
"""

from __future__ import annotations

import numpy as np

from headrace.actors.messages import Accepted, Completion, Generate, VersionServed
from headrace.actors.session import Sampling
from headrace.transport import Actor, Context, TransportError, handles
from identifying.messages import Readings, Serves, WhatWasRead, WhoServes

GENERATOR = "generator"
ASK_TIMEOUT_S = 120.0
START_TIMEOUT_S = 600.0
PAUSE_S = 0.1
MAX_PROBLEMS = 20


class Reader(Actor):
    """num_requests: in flight at once. vocabulary: the token of version v is v modulo this. context_tokens: of prompt
    and answer together."""

    def __init__(self, *, vocabulary: int, context_tokens: int, num_requests: int = 24, seed: int = 0) -> None:
        self._vocabulary = vocabulary
        self._context_tokens = context_tokens
        self._num_requests = num_requests
        self._seed = seed
        self._served = 0
        self._tokens = self._wrong = self._completions = self._mixed = self._lost = 0
        self._versions: set[int] = set()
        self._problems: list[str] = []
        self._stopped = False

    async def on_start(self, context: Context) -> None:
        for number in range(self._num_requests):
            context.spawn(self._read(number), f"requests {number}")

    @handles(VersionServed)
    async def version_served(self, message: VersionServed) -> Accepted:
        self._served = max(self._served, message.version)
        return Accepted()

    @handles(WhoServes, concurrent=True)
    async def who_serves(self, message: WhoServes) -> Serves:
        prompt = np.asarray([1], dtype=np.int32)
        request = Generate("who-serves", prompt, Sampling(temperature=0.0, max_tokens=1), fresh=True)
        while True:  # until the asker gives up
            try:
                completion = await self._ask(request)
            except TransportError:
                await self.context.clock.sleep(PAUSE_S)
            else:
                version = int(completion.versions[0])
                return Serves(version, int(completion.token_ids[0]) == version % self._vocabulary)

    @handles(WhatWasRead)
    async def what_was_read(self, message: WhatWasRead) -> Readings:
        self._stopped = True
        return Readings(
            self._tokens,
            self._wrong,
            self._completions,
            self._mixed,
            self._lost,
            tuple(self._problems),
            tuple(sorted(self._versions)),
        )

    async def _read(self, number: int) -> None:
        """Request after request, each with a prompt and a length of its own."""
        generator = np.random.default_rng([self._seed, number])
        while not self._stopped:
            prompt = generator.integers(0, self._vocabulary, size=int(generator.integers(1, 64))).astype(np.int32)
            max_tokens = int(generator.integers(1, self._context_tokens - len(prompt)))
            sampling = Sampling(temperature=0.0, max_tokens=max_tokens)
            request = Generate(f"reader-{number}", prompt, sampling, fresh=bool(generator.random() < 0.5))
            served = self._served
            try:
                completion = await self._ask(request)
            except TransportError:
                self._lost += 1
                await self.context.clock.sleep(PAUSE_S)
            else:
                self._check(completion, served, max_tokens)

    async def _ask(self, request: Generate) -> Completion:
        group = self.context.group(GENERATOR)
        await group.wait_for(1, timeout_s=START_TIMEOUT_S)
        completion: Completion = await group.ask(request, timeout_s=ASK_TIMEOUT_S)
        return completion

    def _check(self, completion: Completion, served: int, max_tokens: int) -> None:
        """`served`: the version that was said to be served when the request was made."""
        versions, token_ids = completion.versions, completion.token_ids
        wrong = token_ids != versions % self._vocabulary
        self._tokens += len(token_ids)
        self._wrong += int(wrong.sum())
        self._completions += 1
        self._versions.update(versions.tolist())
        self._mixed += len(set(versions.tolist())) > 1
        if wrong.any():
            at = int(wrong.argmax())
            self._note(f"token {token_ids[at]} claims version {versions[at]} at {at} of {_spans(versions)}")
        if (np.diff(versions) < 0).any():
            self._note(f"versions decrease: {_spans(versions)}")
        if len(versions) and versions[0] < served:
            self._note(f"version {served} was served, then version {versions[0]}")
        if len(token_ids) != max_tokens or completion.finish_reason != "length":
            self._note(f"{len(token_ids)} of {max_tokens} tokens, {completion.finish_reason}")

    def _note(self, problem: str) -> None:
        if len(self._problems) < MAX_PROBLEMS:
            self._problems.append(problem)


def _spans(versions: np.ndarray) -> str:
    """Such as "7 from 0, 8 from 22"."""
    starts = [0, *(np.flatnonzero(np.diff(versions)) + 1).tolist()]
    return ", ".join(f"{versions[start]} from {start}" for start in starts)
