"""What people see of a kept item: a pure function of the history before it and after it.

So the live events that a coordinator's messages make can be made again from the table `messages`,
but for their time, which is the market's.
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from contracts.governance.job import JobHistory
from contracts.governance.record import JobRecord
from contracts.terms.history import Kept
from contracts.terms.messages import (
    AuditReport,
    AverageSet,
    GradCommit,
    Message,
    Notice,
    Seal,
    StepClose,
)
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed
from market.bodies.events import AuditedEvent, JobEvent, PeerEvent, RuledEvent, SealedEvent
from market.service.feeds import event_of
from verification.docket import Docket

M = TypeVar("M", bound=Message)


def events_of(
    before: JobHistory, after: JobHistory, item: Kept, at: UnixMillis
) -> Sequence[JobEvent]:
    """The events of `item`, which made `after` of `before` by `follow`."""
    record = after.record
    if record is None or not isinstance(item, Signed):
        return ()
    match item.message:
        case Notice() as notice:
            lease = record.leases.get(notice.peer)
            account = None if lease is None else lease.account
            return (event_of(PeerEvent, notice, at=at, account=account),)
        case AuditReport() as report:
            return (event_of(AuditedEvent, report, at=at),)
        case Seal() as seal:  # its rulings come before it, so that a step is told whole
            return (*_of_rulings(record, at), _of_seal(seal, before, record, at))
    return ()


def _of_rulings(record: JobRecord, at: UnixMillis) -> Iterator[RuledEvent]:
    if not isinstance(record.checking, Docket):
        return
    for ruling in record.checking.rulings:
        yield event_of(RuledEvent, ruling, at=at)


def _of_seal(seal: Seal, before: JobHistory, record: JobRecord, at: UnixMillis) -> SealedEvent:
    commits = _counted(before)
    return event_of(
        SealedEvent,
        seal,
        at=at,
        seal=seal.digest(),
        units=_num_units(before),
        peers=len({commit.peer for commit in commits}),
        members=len(record.members),
        loss_millionths=_loss(before, commits, record.spec.batch.stages - 1),
        budget=record.spec.budget,
    )


def _num_units(before: JobHistory) -> int:
    """Of a stage; all stages of a step do the same units."""
    closes = sorted(_pending(before, StepClose), key=lambda close: close.revision)
    parts = closes[-1].assignments if closes else ()
    return sum(len(part.units) for part in parts if part.stage == 0)


def _counted(before: JobHistory) -> list[GradCommit]:
    """Those that are in the step's sums."""
    sets = _pending(before, AverageSet)
    names = {member.grad_commit for each in sets for member in each.members}
    return [commit for commit in _pending(before, GradCommit) if commit.digest() in names]


def _loss(before: JobHistory, commits: Sequence[GradCommit], last_stage: int) -> int | None:
    """The mean of what the last stage committed, as its coordinator reports it: halves up."""
    names = [commit.digest() for commit in commits if commit.stage == last_stage]
    leaves = (leaf for name in names for leaf in before.leaves[name])
    losses = [leaf.loss for leaf in leaves if leaf.loss is not None]
    if not losses:
        return None
    return (2 * sum(losses) + len(losses)) // (2 * len(losses))


def _pending(before: JobHistory, cls: type[M]) -> list[M]:
    messages = (signed.message for signed in before.pending.values())
    return [message for message in messages if isinstance(message, cls)]
