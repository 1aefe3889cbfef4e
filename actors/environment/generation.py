"""One generation as the turn loop needs it: asked again when its generator dies, and checked before it is used.

Nothing wrong passes into a trajectory: a missing or impossible log-prob fails the session by name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import numpy as np

from headrace.actors.environment.phases import Reason, SessionError
from headrace.actors.messages import Completion, Generate
from headrace.transport import Clock, DeadlineExceeded, PeerLost, Refused, TransportError

AskGenerator = Callable[[Generate, float], Awaitable[Completion]]
"""(request, timeout_s) → completion; sticky by session id, so that a session finds its prefix cache again."""

RETRY_PAUSE_S = 0.1


async def generate(
    request: Generate, *, ask: AskGenerator, clock: Clock, deadline: float, timeout_s: float, max_tries: int
) -> tuple[Completion, int]:
    """The checked completion and the number of tries that failed before it. `deadline` is in the clock's seconds.

    Tries again where the generator died, refused, raised or aborted the request (partial tokens of an aborted request
    are dropped). Raises SessionError: timed_out after a deadline, lost or failed after `max_tries`.
    """
    problem: tuple[Reason, str] = ("lost", "")
    for failures in range(max_tries):
        try:
            completion = await ask(request, min(timeout_s, deadline - clock.time()))
        except DeadlineExceeded as error:
            raise SessionError("timed_out", f"generation: {error}", "timed_out") from error
        except (PeerLost, Refused) as error:
            problem = ("lost", str(error))
        except TransportError as error:
            problem = ("failed", str(error))
        else:
            if completion.finish_reason != "aborted":
                return checked(completion, request.sampling.max_tokens), failures
            problem = ("lost", "the engine aborted the request")
        if failures + 1 < max_tries:
            await clock.sleep(RETRY_PAUSE_S * 2**failures)
    reason, detail = problem
    raise SessionError(reason, f"generation failed {max_tries} times; the last time: {detail}", f"generation_{reason}")


def checked(completion: Completion, max_tokens: int) -> Completion:
    """The completion as int32[N], float32[N], int32[N]. Raises SessionError where it must not be used."""
    num_tokens = len(completion.token_ids)
    if num_tokens > max_tokens:
        raise _bad("too_many_tokens", f"the engine returned {num_tokens} tokens where max_tokens is {max_tokens}")
    if num_tokens and (completion.logprobs is None or len(completion.logprobs) == 0):
        raise _bad(
            "no_logprobs",
            f"the engine returned no log-probs for {num_tokens} tokens, and nothing can be trained without them; "
            "check that the engine's log-probs are on",
        )
    logprobs = np.asarray(completion.logprobs, dtype=np.float32)
    versions = np.asarray(completion.versions, dtype=np.int32)
    if not num_tokens == len(logprobs) == len(versions):
        raise _bad(
            "lengths_differ",
            f"the engine returned {num_tokens} tokens, {len(logprobs)} log-probs and {len(versions)} versions; "
            "it must return one of each for every token",
        )
    if not np.isfinite(logprobs).all():
        where = int(np.flatnonzero(~np.isfinite(logprobs))[0])
        raise _bad("logprob_not_finite", f"the log-prob of token {where} is {logprobs[where]}")
    if (logprobs > 1e-3).any():
        raise _bad("logprob_positive", f"a log-prob is {logprobs.max():.4g}; it must be <= 0")
    if (versions < 0).any():
        raise _bad("version_missing", "the engine returned a token without the version that sampled it")
    return Completion(np.asarray(completion.token_ids, dtype=np.int32), logprobs, versions, completion.finish_reason)


def cut_by_length(completion: Completion, max_tokens: int, stop_token_ids: Sequence[int]) -> bool:
    """Whether the turn ran out of tokens. An engine's own word is not enough: some report a turn that used up all its
    tokens as complete. Such a turn is complete only if its last token is a stop token."""
    if completion.finish_reason == "length":
        return True
    num_tokens = len(completion.token_ids)
    return num_tokens >= max_tokens and int(completion.token_ids[-1]) not in stop_token_ids


def _bad(counter: str, detail: str) -> SessionError:
    return SessionError("failed", detail, counter)
