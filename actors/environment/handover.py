"""What leaves an environment actor: trajectories to graders, and word of it to the dispatcher.

Ownership moves on acknowledgement: until a grader has accepted a trajectory it is ours to retry or to report as lost.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from headrace.actors.environment.phases import SessionError
from headrace.actors.messages import Accepted, GradeSession, SessionFailed, SessionsMoved
from headrace.actors.session import Trajectory
from headrace.transport import Context, TransportError
from headrace.transport.routing import least_outstanding

MAX_TRIES = 3
RETRY_PAUSE_S = 0.5

GraderProcess = tuple[str, str]
"""(name, incarnation)"""


class GraderPool:
    """The graders, asked in turn by who has the fewest of our asks in flight. Needed beside `context.group` because the
    dispatcher wants to know which grader owns a session."""

    def __init__(self, context: Context, role: str, timeout_s: float) -> None:
        self._context = context
        self._group = context.group(role)
        self._timeout_s = timeout_s
        self._outstanding: Counter[str] = Counter()
        self._turn = 0

    async def hand_over(self, trajectory: Trajectory) -> GraderProcess:
        """Who owns it now. Raises SessionError (lost) after MAX_TRIES, each on another grader while there is one."""
        problem = ""
        failed: set[str] = set()
        for tries in range(MAX_TRIES):
            if tries:
                await self._context.clock.sleep(RETRY_PAUSE_S * 2 ** (tries - 1))
            try:
                return await self._ask(trajectory, failed)
            except TransportError as error:
                problem = f"{type(error).__name__}: {error}"
        raise SessionError("lost", f"no grader accepted it in {MAX_TRIES} tries; the last time: {problem}", "no_grader")

    async def _ask(self, trajectory: Trajectory, failed: set[str]) -> GraderProcess:
        """Adds the grader to `failed` where it raises."""
        members = self._group.members() or await self._group.wait_for(1, timeout_s=self._timeout_s)
        others = [name for name in members if name not in failed] or members
        name = least_outstanding(others, self._outstanding.__getitem__, self._turn)
        self._turn += 1
        self._outstanding[name] += 1
        try:
            accepted: Accepted = await self._context.ask(name, GradeSession(trajectory), timeout_s=self._timeout_s)
        except TransportError:
            failed.add(name)
            raise
        finally:
            self._outstanding[name] -= 1
            if not self._outstanding[name]:
                del self._outstanding[name]
        return name, accepted.incarnation


@dataclass(slots=True)
class Moves:
    """Sessions that graders took over and the dispatcher has not been told of. Pure; bounded by the slots, since the
    dispatcher fills a slot only after it was told. What was told to a dispatcher that died meanwhile is not said again:
    its successor asks the graders."""

    _by_grader: dict[GraderProcess, list[tuple[str, int]]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._by_grader)

    def add(self, session_id: str, attempt: int, grader: GraderProcess) -> None:
        self._by_grader.setdefault(grader, []).append((session_id, attempt))

    def take(self) -> list[SessionsMoved]:
        """One message a grader; what they hold is gone from here."""
        moves = [SessionsMoved(tuple(sessions), *grader) for grader, sessions in self._by_grader.items()]
        self._by_grader = {}
        return moves

    def put_back(self, move: SessionsMoved) -> None:
        """The dispatcher could not be told: try again later, before newer ones."""
        grader = (move.grader, move.incarnation)
        self._by_grader[grader] = [*move.sessions, *self._by_grader.get(grader, [])]


async def report_failure(context: Context, dispatcher: str, failure: SessionFailed, timeout_s: float) -> bool:
    """Tell the dispatcher that a session ended without a trajectory; False where it could not be told in MAX_TRIES."""
    for tries in range(MAX_TRIES):
        if tries:
            await context.clock.sleep(RETRY_PAUSE_S * 2 ** (tries - 1))
        try:
            await context.ask(dispatcher, failure, timeout_s=timeout_s)
        except TransportError:
            continue
        return True
    return False
