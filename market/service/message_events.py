"""What people see of a kept item: a pure function of the history before it and after it.

So the live events that a coordinator's messages make can be made again from the table `messages`,
but for their time, which is the market's.
"""

from collections.abc import Iterator, Sequence

from contracts.governance.job import JobHistory
from contracts.governance.record import JobRecord
from contracts.governance.rounds import merge_of
from contracts.terms.history import Kept, Leaves
from contracts.terms.items import count
from contracts.terms.messages import Notice, Seal
from contracts.terms.moments import UnixMillis
from contracts.terms.signatures import Signed
from contracts.terms.work import WorkClaim, findings_of
from market.bodies.events import AuditedEvent, JobEvent, PeerEvent, RuledEvent, SealedEvent
from market.service.feeds import event_of
from verification.docket import Docket


def events_of(
    before: JobHistory, after: JobHistory, item: Kept, at: UnixMillis
) -> Sequence[JobEvent]:
    """The events of `item`, which made `after` of `before` by `follow`."""
    record = after.record
    if record is None:
        return ()
    match item:
        case Leaves():
            return tuple(_of_leaves(item, after, at))
        case Signed(message=Notice() as notice):
            lease = record.leases.get(notice.peer)
            account = None if lease is None else lease.account
            return (event_of(PeerEvent, notice, at=at, account=account),)
        case Signed(message=Seal() as seal):  # after its rulings, so that a step is told whole
            return (*_of_rulings(record, at), _of_seal(seal, before, record, at))
    return ()


def _of_leaves(item: Leaves, history: JobHistory, at: UnixMillis) -> Iterator[AuditedEvent]:
    """What a report found is in its leaf."""
    newest_first = (signed.message for signed in reversed(history.pending.values()))
    claim = next(each for each in newest_first if each.digest() == item.claim)
    if isinstance(claim, WorkClaim) and claim.what == "report":
        verdict = findings_of(item.leaves).verdict
        yield event_of(
            AuditedEvent, claim, at=at, step=claim.round, stage=claim.group, auditor=claim.peer,
            verdict=verdict,
        )  # fmt: skip


def _of_rulings(record: JobRecord, at: UnixMillis) -> Iterator[RuledEvent]:
    if not isinstance(record.checking, Docket):
        return
    for ruling in record.checking.rulings:
        yield event_of(RuledEvent, ruling, at=at)


def _of_seal(seal: Seal, before: JobHistory, record: JobRecord, at: UnixMillis) -> SealedEvent:
    merge = merge_of(record.spec, (signed.message for signed in before.pending.values()))
    merged = () if merge is None else merge.merged
    return event_of(
        SealedEvent,
        seal,
        at=at,
        seal=seal.digest(),
        units=sum(count(claim.items) for claim in merged if claim.group == 0),
        peers=len({claim.peer for claim in merged}),
        members=len(record.members),
        loss_millionths=_loss(before, merged),
        budget=record.spec.budget,
    )


def _loss(before: JobHistory, merged: Sequence[WorkClaim]) -> int | None:
    """The mean of the losses claimed, by the weights of items, as its coordinator reports it.

    The first number of a leaf is the loss; leaves without it are of groups that compute none.
    """
    leaves = (leaf for claim in merged for leaf in before.leaves[claim.digest()])
    losses = {leaf.item: leaf.numbers[0] for leaf in leaves if leaf.numbers}
    return None if before.record is None else before.record.weights.mean(losses)
