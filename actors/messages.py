"""Every message that one actor kind sends to another. Typed, registered, versioned; never pickled.

This file is the contract between the actor kinds: a kind imports this and `actors/session/`, never another kind.
The comment above each block says who sends it, to whom, and what comes back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from headrace.actors.session import Group, Sampling, SessionSpec, Trajectory
from headrace.transport import message
from headrace.transport.weights import Manifest


@message("accepted")
@dataclass(frozen=True, slots=True)
class Accepted:
    """The receiver owns it now. `incarnation`: of the receiver's process, where who accepted it matters ("" says
    nothing)."""

    incarnation: str = ""


# --- sessions -------------------------------------------------------------------------------------------------------


@message("session.run")
@dataclass(frozen=True, slots=True)
class RunSessions:
    """dispatcher → environment (ask → Accepted): run these, each in a slot of yours. An environment actor announces
    `slots` in its directory metadata and the dispatcher never exceeds it."""

    sessions: tuple[SessionSpec, ...]


@message("session.cancel")
@dataclass(frozen=True, slots=True)
class CancelSessions:
    """dispatcher → environment (ask → Accepted): stop these attempts, and earlier ones; nothing more is sent about
    them. `sessions`: (session id, attempt)."""

    sessions: tuple[tuple[str, int], ...]


@message("session.moved")
@dataclass(frozen=True, slots=True)
class SessionsMoved:
    """environment → dispatcher (ask → Accepted): a grader acknowledged these; their slots are free, `grader` owns them,
    as the process `incarnation` (a grader that was restarted since has lost them). `sessions`: (session id,
    attempt)."""

    sessions: tuple[tuple[str, int], ...]
    grader: str
    incarnation: str = ""


@message("session.failed")
@dataclass(frozen=True, slots=True)
class SessionFailed:
    """environment or grader → dispatcher (ask → Accepted): this attempt ended without a trajectory or a grade."""

    session_id: str
    attempt: int
    reason: Literal["failed", "timed_out", "lost"]
    detail: str


@message("session.grade")
@dataclass(frozen=True, slots=True)
class GradeSession:
    """environment → grader (ask → Accepted): a finished, ungraded trajectory; the grader owns it from the reply on."""

    trajectory: Trajectory


@message("session.graded")
@dataclass(frozen=True, slots=True)
class SessionGraded:
    """grader → dispatcher (ask → Accepted): deduplicated by session_id."""

    trajectory: Trajectory


@message("session.which")
@dataclass(frozen=True, slots=True)
class WhichSessions:
    """dispatcher → environment and grader (ask → SessionsHeld), after the dispatcher was restarted: what do you own?"""


@message("session.held")
@dataclass(frozen=True, slots=True)
class SessionsHeld:
    """`sessions`: (session id, attempt) of every session that the actor owns: it has accepted it and nobody else has
    since. `incarnation`: of its process. `slots`: an environment's."""

    sessions: tuple[tuple[str, int], ...]
    incarnation: str
    slots: int = 0


# --- generation -----------------------------------------------------------------------------------------------------


@message("generate")
@dataclass(frozen=True, slots=True, eq=False)
class Generate:
    """environment → generator (ask → Completion): continue `prompt_token_ids` (int32[P]).
    `fresh` asks for a prefill without any cached prefix, `prompt_logprobs` for the prompt's own (the log-prob
    probes)."""

    session_id: str
    prompt_token_ids: np.ndarray
    sampling: Sampling
    fresh: bool = False
    prompt_logprobs: bool = False


@message("generate.completion")
@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """N sampled tokens: token_ids int32[N] (the stop token included when it was sampled), logprobs float32[N] as
    sampled (temperature applied), versions int32[N]. prompt_logprobs float32[P - 1]: of the prompt's tokens after the
    first, at temperature 1; empty unless asked for."""

    token_ids: np.ndarray
    logprobs: np.ndarray
    versions: np.ndarray
    finish_reason: Literal["stop", "length", "aborted"]
    prompt_logprobs: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.float32))


# --- training -------------------------------------------------------------------------------------------------------


@message("train.next_batch")
@dataclass(frozen=True, slots=True)
class NextBatch:
    """learner → dispatcher (ask → Batch): held until a batch is ready or `wait_s` has passed (then an empty Batch).
    `step`: optimizer steps that the learner has done. Asked again before BatchTrained, it gets the same batch."""

    step: int
    wait_s: float


@message("train.batch")
@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What one optimizer step eats. `version_steps` maps a version to its optimizer step. `num_failed`: attempts of
    training sessions that failed or timed out since the batch before; those that were lost with a process are not."""

    groups: tuple[Group, ...]
    version_steps: dict[int, int] = field(default_factory=dict)
    num_failed: int = 0


@message("train.trained")
@dataclass(frozen=True, slots=True)
class BatchTrained:
    """learner → dispatcher (ask → Accepted): these went into optimizer step `step` (the first is 1). Deduplicated by
    session id."""

    step: int
    session_ids: tuple[str, ...]


@message("train.resumed")
@dataclass(frozen=True, slots=True)
class LearnerResumed:
    """learner → dispatcher (ask → Accepted), once, before its first NextBatch, where an earlier life of it published
    weights: it goes on from optimizer step `step`. What was trained later is lost, and so is the batch that it had.
    `version`: the last one that was published before. `goes_on`: whether it has steps left to take, also where its
    training was said to be over before."""

    step: int
    version: int
    goes_on: bool


@message("train.evaluated")
@dataclass(frozen=True, slots=True)
class VersionEvaluated:
    """dispatcher → learner (tell): an evaluation of `version`, with `step` optimizer steps, found the mean reward
    `score`."""

    version: int
    step: int
    score: float


@message("train.finished")
@dataclass(frozen=True, slots=True)
class TrainingFinished:
    """learner → dispatcher (ask → Accepted): no NextBatch follows; `version` is the last one published."""

    step: int
    version: int


@message("run.finished")
@dataclass(frozen=True, slots=True)
class RunFinished:
    """dispatcher → supervisor (ask → Accepted): the final evaluation is done; stop the topology."""

    reason: str


@message("run.stepped")
@dataclass(frozen=True, slots=True)
class LearnerStepped:
    """learner → supervisor (tell, may be lost): optimizer step `step`, the first is 1, of `stage` is made."""

    stage: str
    step: int


# --- ranks of the learner ---------------------------------------------------------------------------------------------


@message("ranks.join")
@dataclass(frozen=True, slots=True)
class JoinRanks:
    """learner → learner_rank (ask): be rank `rank` of `size`, from 1 on, of the learner `incarnation`; the ranks
    meet at host:port, within `timeout_s`. Accepted where it will be; one that was a rank of another learner ends
    instead, and its successor is to be asked."""

    host: str
    port: int
    rank: int
    size: int
    incarnation: str
    timeout_s: float


# --- weights --------------------------------------------------------------------------------------------------------


@message("weights.publish")
@dataclass(frozen=True, slots=True)
class PublishWeights:
    """learner → parameter_server (ask → Accepted): `manifest` is staged and checksummed; distribute it."""

    manifest: Manifest


@message("weights.withdraw")
@dataclass(frozen=True, slots=True)
class WithdrawWeights:
    """learner → parameter_server (ask → Accepted), where it has one buffer (weights.staging=false): it needs that of
    the newest version for the next. WeightsReleased follows as soon as nobody reads it."""


@message("weights.released")
@dataclass(frozen=True, slots=True)
class WeightsReleased:
    """parameter_server → learner (ask → Accepted): no one reads the staging buffer of this version any more."""

    version: int


@message("weights.refused")
@dataclass(frozen=True, slots=True)
class WeightsRefused:
    """parameter_server → learner (ask → Accepted): not one live generator could take this version, the newest."""

    version: int
    reason: str


@message("weights.stage")
@dataclass(frozen=True, slots=True)
class StageWeights:
    """parameter_server → generator (ask → WeightsStaged): bring the bytes near and verify them; serving goes on.
    `group`: of a collective, the group that they are broadcast in meanwhile, for `timeout_s` at most. Where the
    manifest's location says so, they are loaded as they arrive, and the version serves when the answer comes."""

    manifest: Manifest
    group: str = ""
    timeout_s: float = 0.0


@message("weights.staged")
@dataclass(frozen=True, slots=True)
class WeightsStaged:
    """`send_s`: until the bytes were near; `verify_s`: their checksums."""

    version: int
    send_s: float = 0.0
    verify_s: float = 0.0


@message("weights.commit")
@dataclass(frozen=True, slots=True)
class CommitWeights:
    """parameter_server → generator (ask → WeightsCommitted): pause, load from staging, resume."""

    version: int


@message("weights.committed")
@dataclass(frozen=True, slots=True)
class WeightsCommitted:
    """`pause_s`: from asking the engine to pause until it runs again (it contains `load_s`)."""

    version: int
    pause_s: float
    load_s: float
    requests_running: int


@message("engine.sleep")
@dataclass(frozen=True, slots=True)
class SleepEngine:
    """learner → generator (ask → EngineAsleep), evaluators too: I am about to train on a GPU that you may share. The
    next commit or request wakes the engine again."""


@message("engine.asleep")
@dataclass(frozen=True, slots=True)
class EngineAsleep:
    """`why_not`: empty where it sleeps."""

    why_not: str = ""


# A collective: sender and receivers act at once, in a group of ranks (parameter_server/group_round.py). A group's name
# is never used again, not by a later life of the parameter server either.


@message("weights.group.gather")
@dataclass(frozen=True, slots=True)
class GatherGroup:
    """parameter_server → generator (ask → GroupReady): will you join a group? Every worker of the engine answers, so
    that whoever is missing is known before anybody waits in a collective."""


@message("weights.group.ready")
@dataclass(frozen=True, slots=True)
class GroupReady:
    """`num_ranks`: workers of the engine, each a rank. `version`: that it serves; it takes no older one. `kind`: of the
    groups that it joins, "headrace" with others or "vllm" with the learner alone."""

    num_ranks: int
    version: int
    kind: str = "headrace"


@message("weights.group.open")
@dataclass(frozen=True, slots=True)
class OpenGroup:
    """parameter_server → learner (ask → GroupOpened): make an id and begin to join as rank 0, for `timeout_s` at most.
    `keep`: the groups that stay; every other one is left. `kind`: see GroupReady."""

    group: str
    world_size: int
    timeout_s: float
    keep: tuple[str, ...]
    kind: str = "headrace"


@message("weights.group.opened")
@dataclass(frozen=True, slots=True)
class GroupOpened:
    """`backend`: "cupy" or "memory". `unique_id`: what its ranks find each other by (NCCL: 128 bytes)."""

    backend: str
    unique_id: bytes


@message("weights.group.join")
@dataclass(frozen=True, slots=True)
class JoinGroup:
    """parameter_server → generator, learner (ask → GroupJoined): join as ranks `first_rank` and up, within `timeout_s`;
    the learner, which has begun already, as rank 0. `keep`: see OpenGroup."""

    group: str
    backend: str
    unique_id: bytes
    first_rank: int
    world_size: int
    timeout_s: float
    keep: tuple[str, ...]


@message("weights.group.joined")
@dataclass(frozen=True, slots=True)
class GroupJoined:
    """All ranks of the group have met this member's."""

    group: str


@message("weights.group.send")
@dataclass(frozen=True, slots=True)
class SendWeights:
    """parameter_server → learner (ask → WeightsSent): broadcast the staged version, within `timeout_s`."""

    group: str
    version: int
    timeout_s: float


@message("weights.group.sent")
@dataclass(frozen=True, slots=True)
class WeightsSent:
    """`send_s`: of the whole broadcast."""

    version: int
    send_s: float


@message("weights.group.abort")
@dataclass(frozen=True, slots=True)
class AbortGroup:
    """parameter_server → generator, learner (ask → GroupAborted): end what is under way in the group, and leave it."""

    group: str


@message("weights.group.aborted")
@dataclass(frozen=True, slots=True)
class GroupAborted:
    """`progress` of the slowest rank: 0: it has not begun to join; 1: it has; from 2 on it is joined and has sent or
    received `progress` − 2 buckets."""

    progress: int


@message("weights.local")
@dataclass(frozen=True, slots=True)
class LocalWeights:
    """generator → relay (ask → WeightsLocal): have this version on our host, for me to read until WeightsLoaded or my
    next LocalWeights. `reader`: my name and incarnation."""

    manifest: Manifest
    reader: str


@message("weights.here")
@dataclass(frozen=True, slots=True)
class WeightsLocal:
    """`manifest`: the same version in shared memory of this host."""

    manifest: Manifest


@message("weights.loaded")
@dataclass(frozen=True, slots=True)
class WeightsLoaded:
    """generator → relay (tell): I no longer read any version that I asked for, be it loaded or given up."""

    reader: str


@message("weights.fetch")
@dataclass(frozen=True, slots=True)
class FetchBucket:
    """relay → parameter_server (ask → WeightsBucket): bucket `index` of `version`, or, where `below`, of the full
    weights that this adapter goes upon. `base`: a version that the relay holds whole; a delta upon it will do. `keep`:
    this version will be a base."""

    version: int
    index: int
    below: bool
    base: int | None
    keep: bool


@message("weights.bucket")
@dataclass(frozen=True, slots=True, eq=False)
class WeightsBucket:
    """`kind`: "full": `data` (uint8) are the bucket's bytes; "delta": what weights/delta.py decodes upon the base;
    "unknown": no such version was published here yet; "gone": it was released."""

    kind: Literal["full", "delta", "unknown", "gone"]
    data: np.ndarray
    reason: str = ""


@message("weights.sync_evaluators")
@dataclass(frozen=True, slots=True)
class SyncEvaluators:
    """dispatcher → parameter_server (ask → VersionServed): give the role `evaluator` the newest version and hold it."""


@message("weights.served")
@dataclass(frozen=True, slots=True)
class VersionServed:
    """A version that generators acknowledged. parameter_server → dispatcher and learner (ask → Accepted), and the
    reply to SyncEvaluators. `step`: the optimizer steps that the version holds."""

    version: int
    step: int


# --- the monitor ----------------------------------------------------------------------------------------------------


@message("monitor.metrics")
@dataclass(frozen=True, slots=True)
class Metrics:
    """any actor → monitor (tell): values at one tick of the sender's own counter `step_name`
    ("step", "version", "wall_s", …). `stream` names the series, e.g. "train", "weights", "eval"."""

    stream: str
    step_name: str
    step: float
    values: dict[str, float]
