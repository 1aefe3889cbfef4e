"""Whether a generator that has just joined serves: a token is asked of it. It holds requests until the parameter server
has given it the newest version, so that the answer is the proof. Called by scaler.py."""

from __future__ import annotations

import numpy as np

from headrace.actors.messages import Completion, Generate
from headrace.actors.session import Sampling
from headrace.transport import Context, DeadlineExceeded, PeerLost

ASK_TIMEOUT_S = 30.0
PAUSE_S = 0.2
PROMPT = np.zeros(1, np.int32)
"""one token that every vocabulary has"""


async def first_version(context: Context, generator: str) -> int:
    """The version that sampled a token there; asked again, without a bound of its own, where the generator dies and is
    started again. Raises TransportError where it answers that it cannot."""
    request = Generate(f"probe-{generator}", PROMPT, Sampling(temperature=1.0, max_tokens=1, seed=0))
    while True:
        try:
            completion: Completion = await context.ask(generator, request, timeout_s=ASK_TIMEOUT_S)
        except (DeadlineExceeded, PeerLost):
            await context.clock.sleep(PAUSE_S)
            continue
        if len(completion.versions):
            return int(completion.versions[0])
        await context.clock.sleep(PAUSE_S)  # it was aborted
