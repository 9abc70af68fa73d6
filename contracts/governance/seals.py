"""Which seal follows from a step: its coordinator derives it, all others derive it again. Pure.

A valid seal extends the one before; its root is over the messages 3 to 8 of its step; its gradient
norm, pay root and totals follow from them; the coordinator's wallet signed it. Nothing in it is
the coordinator's choice but whether the step is the last.
Source: docs/protocol.md 3.6.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from contracts.governance.checking import Standing, StepFacts, Terms
from contracts.governance.claims import PayTree
from contracts.governance.pay import PayLeaf
from contracts.governance.record import JobRecord, check_signature
from contracts.governance.steps import StepOutcome, of_kind, read_step, require
from contracts.governance.vesting import Earned, advance, pay_after
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import BadSignature, Conflict, InvalidSeal
from contracts.terms.history import messages_root
from contracts.terms.ids import Digest, PeerId, StageIndex, StepNumber
from contracts.terms.messages import (
    AuditReport,
    AveragedChunk,
    GradCommit,
    LeaseAccept,
    Message,
    Notice,
    Seal,
    StepBeacon,
    UnitLeaf,
)
from contracts.terms.signatures import Signed


@dataclass(frozen=True)
class UnderSeal:
    """Messages 3 to 8 of one step, in any order, and the unit leaves of its GradCommits."""

    messages: tuple[Signed[Message], ...] = ()
    leaves: Mapping[Digest, tuple[UnitLeaf, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Derived:
    """The seal that follows, the pay behind its root, and the record after it."""

    seal: Seal
    pay: tuple[PayLeaf, ...]
    record: JobRecord
    counted: frozenset[Digest]  # GradCommits whose work is paid
    standing: Standing  # what draws and verdicts say about pay


def derive_seal(record: JobRecord, under: UnderSeal, *, last: bool) -> Derived:
    """The one valid seal of the step after `record`. Signatures are not checked here.

    Raises:
        Equivocation: two values under one name.
        InvalidSeal: the messages contradict each other or the record; data: `part`.
    """
    require(not record.ended, "last", "the last seal was already given")
    messages = [signed.message for signed in under.messages]
    joined = _after_notices(record, [each for each in messages if isinstance(each, Notice)])
    outcome = read_step(replace(record, members=joined.present), messages, under.leaves)
    step, leases = StepNumber(record.step + 1), record.pay_leases()
    facts = _facts(step, messages, outcome, last=last)
    checking, standing = record.checking.after(facts, Terms(record.spec, leases, record.members))
    state = advance(record.pay, Earned(step, outcome.work, last), standing)
    pay = pay_after(state, leases)
    seal = Seal(
        job=record.job,
        step=step,
        previous=record.previous,
        messages_root=messages_root(messages),
        gradient_norm=outcome.gradient_norm,
        pay_root=PayTree(pay).root,
        earned=BaseUnits(sum(leaf.earned for leaf in pay)),
        vested=BaseUnits(sum(leaf.vested for leaf in pay)),
        last=last,
    )
    after = replace(
        record,
        previous=seal.digest(),
        pay=state,
        members=joined.remaining,
        next_notice=joined.next_notice,
        gates=outcome.gates,
        checking=checking,
    )
    return Derived(seal, pay, after, outcome.counted, standing)


def _facts(
    step: StepNumber, messages: Sequence[Message], outcome: StepOutcome, *, last: bool
) -> StepFacts:
    # A seal names a set: what follows from it must not depend on the order in which it is kept.
    messages = sorted(messages, key=lambda each: each.digest())
    return StepFacts(
        step=step,
        commits=of_kind(messages, GradCommit),
        work=outcome.work,
        above=outcome.too_long,
        chunks=of_kind(messages, AveragedChunk),
        beacons=of_kind(messages, StepBeacon),
        reports=of_kind(messages, AuditReport),
        notices=sorted(of_kind(messages, Notice), key=lambda each: each.number),
        last=last,
    )


def verify_seal(record: JobRecord, seal: Signed[Seal], under: UnderSeal) -> Derived:
    """Derive the seal again and compare it field by field.

    The signatures under it were checked as the messages came (`record.check_signature`).

    Raises:
        Equivocation: two values under one name.
        InvalidSeal: it is not the valid seal; data: `part` names the first thing that differs.
    """
    try:
        check_signature(record, seal)
    except (BadSignature, Conflict) as error:
        raise InvalidSeal(f"seal: {error.message}", part="seal_signature") from error
    derived = derive_seal(record, under, last=seal.message.last)
    for part in Seal.model_fields:
        ours, theirs = getattr(derived.seal, part), getattr(seal.message, part)
        require(ours == theirs, part, "the seal says something else than its messages")
    return derived


@dataclass(frozen=True)
class _Members:
    """Members during the step (all that were or joined), those after it, the next number."""

    present: Mapping[PeerId, StageIndex]
    remaining: Mapping[PeerId, StageIndex]
    next_notice: int


def _after_notices(record: JobRecord, notices: list[Notice]) -> _Members:
    present, remaining = dict(record.members), dict(record.members)
    number = record.next_notice
    for notice in sorted(notices, key=lambda each: each.number):
        require(notice.number == number, "notice", f"number {notice.number} is not {number}")
        number += 1
        if notice.what == "join":
            _check_join(record, notice, remaining)
            require(present.get(notice.peer, notice.stage) == notice.stage, "notice", "two stages")
            present[notice.peer] = remaining[notice.peer] = notice.stage
        else:
            is_member = present.get(notice.peer) == notice.stage
            is_known = is_member or _is_outside(record, notice) or _is_of_old(record, notice)
            require(is_known, "notice", f"{notice.what} of a peer that is not of this stage")
            if notice.what in ("leave", "suspension"):
                require(remaining.pop(notice.peer, None) is not None, "notice", "left already")
    return _Members(present, remaining, number)


def _is_of_old(record: JobRecord, notice: Notice) -> bool:
    """Whether it says what became of work, or of an audit, whose peer may have left."""
    return notice.what in ("missing_data", "missed_report") and notice.peer in record.leases


def _is_outside(record: JobRecord, notice: Notice) -> bool:
    """Whether it is about the report of somebody who is no member; checking says if it is due."""
    outside = (each.peer for each in record.outside.auditors)
    return notice.what == "missed_report" and notice.peer in outside


def _check_join(record: JobRecord, notice: Notice, members: Mapping[PeerId, StageIndex]) -> None:
    lease: LeaseAccept | None = record.leases.get(notice.peer)
    known = lease is not None and lease.digest() == notice.evidence
    require(known, "notice", "a join without the LeaseAccept that it names")
    require(notice.peer not in members, "notice", "a member joins again")
    require(notice.stage < record.spec.batch.stages, "notice", "joins a stage that does not exist")
