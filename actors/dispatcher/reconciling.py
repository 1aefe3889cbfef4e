"""After a restart: what the journal says against what environments and graders really hold.

Environments are asked first, then graders: a session on its way from one to the other is then seen at least once. What
somebody holds goes on there; what nobody holds is lost and tried again; what an environment holds and nobody wants any
more is cancelled. A grader's unwanted session needs no word: its grade is ignored when it comes.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from headrace.actors.dispatcher.placement import Placement
from headrace.actors.dispatcher.training import TrainingSessions
from headrace.actors.messages import SessionsHeld, WhichSessions
from headrace.transport import Context, TransportError

logger = logging.getLogger(__name__)

ENVIRONMENT, GRADER = "environment", "grader"

_ANSWER_TIMEOUT_S = 10.0
_SHOWN = 3


@dataclass
class Reconciled:
    """`claimed`: sessions that go on where they are. `lost`: that nobody has. `unwanted`: by environment, to be
    cancelled there. `silent`: actors that live but gave no answer; what the journal says that they hold stays with
    them, until their end or its deadline. `incarnations`: of those that answered."""

    claimed: set[str] = field(default_factory=set)
    lost: list[str] = field(default_factory=list)
    unwanted: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    incarnations: dict[str, str] = field(default_factory=dict)


async def reconcile(context: Context, training: TrainingSessions, placement: Placement) -> Reconciled:
    """Asks everybody; moves the records of `training` and the seats of `placement` to what is so."""
    found = Reconciled()
    for role in (ENVIRONMENT, GRADER):
        answers = await context.group(role).ask_all(WhichSessions(), timeout_s=_ANSWER_TIMEOUT_S)
        for name, answer in answers.items():
            if isinstance(answer, TransportError):
                logger.warning("%s did not say which sessions it has: %s", name, answer)
                found.silent.add(name)
            else:
                take_answer(found, training, placement, name, answer)
    settle(found, training)
    logger.warning(
        "went on from the journal at step %d: %d sessions go on where they are, %d are lost and tried again (e.g. %s), "
        "%d are cancelled",
        training.learner_step,
        len(found.claimed),
        len(found.lost),
        ", ".join(found.lost[:_SHOWN]) or "none",
        sum(map(len, found.unwanted.values())),
    )
    return found


def take_answer(
    found: Reconciled, training: TrainingSessions, placement: Placement, name: str, answer: SessionsHeld
) -> None:
    """What one actor holds."""
    found.incarnations[name] = answer.incarnation
    is_environment = name.startswith(f"{ENVIRONMENT}/")
    if is_environment:
        placement.join(name, answer.slots)
    for session_id, attempt in answer.sessions:
        if training.claim(session_id, attempt, name, is_running=is_environment):
            found.claimed.add(session_id)
            if is_environment:
                placement.put(session_id, name)
            else:
                placement.release(session_id)
        elif is_environment:
            found.unwanted.setdefault(name, []).append((session_id, attempt))


def settle(found: Reconciled, training: TrainingSessions) -> None:
    """After every answer: what was thought to be somewhere and is nowhere is lost."""
    for record in training.ledger.records():
        held = record.holder is not None and not record.graded
        if held and record.spec.session_id not in found.claimed and record.holder not in found.silent:
            found.lost.append(record.spec.session_id)
