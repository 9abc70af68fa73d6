"""Which seal follows from a round: its coordinator derives it, all others derive it again. Pure.

A valid seal extends the one before; its root is over those pending messages that it has to cover
(`rounds.sealed_set`); its gradient norm, cursor, pay root and totals follow from them; the
coordinator's wallet signed it. Nothing in it is its choice but whether the seal is the last.
Source: docs/protocol.md 3.6.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from contracts.governance.checking import RoundFacts, Standing, Terms
from contracts.governance.claims import PayTree
from contracts.governance.pay import PayLeaf
from contracts.governance.record import JobRecord, check_signature
from contracts.governance.rounds import RoundOutcome, of_kind, read_round, require, sealed_set
from contracts.governance.stopping import Validations
from contracts.governance.vesting import advance, pay_after
from contracts.terms.amounts import BaseUnits
from contracts.terms.errors import BadSignature, Conflict, InvalidSeal
from contracts.terms.history import messages_root
from contracts.terms.ids import Digest, PeerId, StageIndex, StepNumber
from contracts.terms.messages import LeaseAccept, Message, Notice, Seal, StepBeacon, Validation
from contracts.terms.signatures import Signed
from contracts.terms.work import Leaf


@dataclass(frozen=True)
class UnderSeal:
    """All messages that no seal has covered yet, in any order, and the leaves of their claims."""

    messages: tuple[Signed[Message], ...] = ()
    leaves: Mapping[Digest, tuple[Leaf, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Derived:
    """The seal that follows, the pay behind its root, and the record after it."""

    seal: Seal
    pay: tuple[PayLeaf, ...]
    record: JobRecord
    names: frozenset[Digest]  # of the messages that it covers
    paid: frozenset[Digest]  # claims whose work is paid
    standing: Standing  # what draws and verdicts say about pay


def derive_seal(record: JobRecord, under: UnderSeal, *, last: bool) -> Derived:
    """The one valid seal of the round after `record`. Signatures are not checked here.

    Raises:
        Equivocation: two values under one name.
        InvalidSeal: the messages contradict each other or the record; data: `part`.
    """
    require(not record.ended, "last", "the last seal was already given")
    pending = [signed.message for signed in under.messages]
    names = sealed_set(record.spec, pending)
    # A seal names a set: what follows from it must not depend on the order in which it is kept.
    messages = sorted(
        (each for each in pending if each.digest() in names), key=lambda each: each.digest()
    )
    joined = _after_notices(record, of_kind(messages, Notice))
    outcome = read_round(replace(record, members=joined.present), messages, under.leaves)
    is_over = record.validations.end_work(record.spec.batch.stop_early)
    require(outcome.merge is None or not is_over, "stop_early", "work after losses that end it")
    step, leases = StepNumber(record.step + 1), record.pay_leases()
    facts = _facts(step, messages, outcome, last=last)
    checking, standing = record.checking.after(facts, Terms(record.spec, leases, record.members))
    state = advance(record.pay, step, outcome.work, standing, last=last)
    pay = pay_after(state, leases)
    seal = Seal(
        job=record.job,
        step=step,
        previous=record.previous,
        messages_root=messages_root(messages),
        gradient_norm=outcome.gradient_norm,
        next=outcome.cursor.next,
        unsealed=outcome.cursor.unsealed,
        updates=outcome.updates,
        pay_root=PayTree(pay).root,
        earned=BaseUnits(sum(leaf.earned for leaf in pay)),
        vested=BaseUnits(sum(leaf.vested for leaf in pay)),
        last=last,
    )
    name, is_void = seal.digest(), outcome.merge is None
    reported = {each.claim.digest() for each in outcome.reports}
    after = replace(
        record,
        previous=name,
        pay=state,
        members=joined.remaining,
        next_notice=joined.next_notice,
        gates=outcome.gates,
        checking=checking,
        cursor=outcome.cursor,
        updates=outcome.updates,
        since_update=(*record.since_update, name) if is_void else (name,),
        reported=record.reported | reported if is_void else frozenset(),
        validations=_validations(record, of_kind(messages, Validation)),
    )
    if outcome.merge is not None and record.spec.batch.merges_late:
        after = replace(
            after,
            before_update=record.since_update,
            reported_before=record.reported | reported,
            bases=outcome.merge.closed.bases,
        )
    return Derived(seal, pay, after, names, outcome.paid, standing)


def _validations(record: JobRecord, said: Sequence[Validation]) -> Validations:
    """What is known of losses on validation rows after these."""
    found, batch = record.validations, record.spec.batch
    for each in said:
        is_due = (
            found.newest < each.of == record.newest_update and not each.of % batch.validate_every
        )
        require(is_due, "validation", f"none of step {each.of} is due")
        require(batch.stop_early is not None, "validation", "the job does not stop early")
        assert batch.stop_early is not None
        found = found.after(each, batch.stop_early)
    return found


def _facts(
    step: StepNumber, messages: Sequence[Message], outcome: RoundOutcome, *, last: bool
) -> RoundFacts:
    merge = outcome.merge
    return RoundFacts(
        step=step,
        claims=[] if merge is None else merge.merged,
        buckets=[] if merge is None else merge.buckets,
        work=outcome.work,
        above=outcome.above,
        beacons=of_kind(messages, StepBeacon),
        reports=outcome.reports,
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
