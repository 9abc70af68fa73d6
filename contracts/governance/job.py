"""A job's history as it arrives, item by item: what may come next, and what it establishes. Pure.

The order of `contracts.terms.history`: JobSpec, JobOpening, of a checked job the list of outside
auditors, of a job on chats the counts of targets, LeaseAccepts, then the messages of a round, each
claim of work or report followed by its leaves, then the Seal. It covers all of them but claims of
work that no update holds; these stay pending while a later RoundClosed may name them, and are
dropped then. A LeaseAccept may also come between rounds. Coordinator, members, API and audit read
histories by this one fold, so that what one accepts no other refuses.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from contracts.governance.checking import NOTHING_SAID, Begin, Standing, unread
from contracts.governance.pay import PayLeaf
from contracts.governance.record import (
    JobRecord,
    check_signature,
    open_job,
    with_auditors,
    with_lease,
    with_targets,
)
from contracts.governance.rounds import eligible
from contracts.governance.seals import UnderSeal, verify_seal
from contracts.terms.auditors import AuditorList
from contracts.terms.errors import Conflict, Equivocation, Malformed
from contracts.terms.history import Kept, Leaves, claim_leaves_root
from contracts.terms.ids import Digest
from contracts.terms.messages import JobOpening, JobSpec, LeaseAccept, Message, Seal
from contracts.terms.signatures import Signed, expect, verify_wallet
from contracts.terms.targets import TargetCounts
from contracts.terms.typed_data import Domain
from contracts.terms.work import UNDER_A_SEAL, Leaf, WorkClaim, findings_of

Name: TypeAlias = tuple[object, ...]
"""See `Message.stated_name`."""


@dataclass(frozen=True)
class SealedStep:
    """A valid seal with its signature, the pay behind its root, and what that follows from."""

    seal: Signed[Seal]
    pay: tuple[PayLeaf, ...]
    names: frozenset[Digest] = frozenset()  # of the messages that its root covers
    paid: frozenset[Digest] = frozenset()  # claims whose work is paid
    standing: Standing = NOTHING_SAID


@dataclass(frozen=True)
class JobHistory:
    """What the items so far establish. Begin with `JobHistory(domain, begin)`."""

    domain: Domain
    begin: Begin = unread
    spec: Signed[JobSpec] | None = None
    record: JobRecord | None = None  # from the opening on
    pending: dict[Name, Signed[Message]] = field(default_factory=dict)  # not yet sealed
    leaves: Mapping[Digest, tuple[Leaf, ...]] = field(default_factory=dict)  # of pending
    newest: SealedStep | None = None
    parties: tuple[Signed[Message], ...] = ()  # JobSpec, JobOpening and LeaseAccepts, as signed

    def pending_of(self, names: Collection[Digest]) -> list[Message]:
        """Pending messages with these digests: of `SealedStep.names`, what that seal covers."""
        messages = (signed.message for signed in self.pending.values())
        return [each for each in messages if each.digest() in names]


def follow(history: JobHistory, item: Kept) -> JobHistory:
    """The history with one more item.

    Raises:
        BadSignature: not signed by whom it binds.
        Malformed: not an item of a history, or not where it may stand.
        Conflict: it contradicts what is already fixed, or is known already.
        Equivocation, InvalidSeal: see `seals.verify_seal`.
    """
    if isinstance(item, Leaves):
        return _with_leaves(history, item)
    if isinstance(item, AuditorList):
        record = with_auditors(_opened(history), item, history.begin)
        return replace(history, record=record)
    if isinstance(item, TargetCounts):
        return replace(history, record=with_targets(_opened(history), item))
    match item.message:
        case JobSpec():
            return _with_spec(history, expect(item, JobSpec))
        case JobOpening():
            return _with_opening(history, expect(item, JobOpening))
        case LeaseAccept():
            record = with_lease(_opened(history), expect(item, LeaseAccept))
            return replace(history, record=record, parties=(*history.parties, item))
        case Seal():
            return _with_seal(history, expect(item, Seal))
        case message if isinstance(message, UNDER_A_SEAL):
            return _with_message(history, item)
    raise Malformed(f"a {item.message.kind} is not kept in a job's history")


def _opened(history: JobHistory) -> JobRecord:
    if history.record is None:
        raise Malformed("a history begins with its JobSpec and JobOpening")
    return history.record


def _with_spec(history: JobHistory, spec: Signed[JobSpec]) -> JobHistory:
    if history.spec is not None:
        raise Conflict("the job has a spec already")
    verify_wallet(spec, spec.message.poster, history.domain)
    return replace(history, spec=spec, parties=(spec,))


def _with_opening(history: JobHistory, opening: Signed[JobOpening]) -> JobHistory:
    if history.spec is None:
        raise Malformed("a history begins with its JobSpec")
    if history.record is not None:
        if history.record.opening == opening.message:
            raise Conflict("the job is opened already")
        raise Equivocation("two openings of one job")
    record = open_job(history.spec, opening, history.domain)
    return replace(history, record=record, parties=(*history.parties, opening))


def _with_message(history: JobHistory, signed: Signed[Message]) -> JobHistory:
    record = _opened(history)
    if record.ended:
        raise Conflict("the job has ended")
    check_signature(record, signed)
    if not _is_in_time(record, signed.message):
        raise Conflict(f"{signed.message.kind}: not of step {record.step + 1}")
    name = signed.message.stated_name()
    assert name is not None  # every message under a seal has one
    if other := history.pending.get(name):
        if other.message == signed.message:
            raise Conflict(f"this {signed.message.kind} is known already")
        raise Equivocation(f"two values of one {signed.message.kind}")
    return replace(history, pending={**history.pending, name: signed})


def _is_in_time(record: JobRecord, message: Message) -> bool:
    """Whether the next seal, or a later one, may cover a message of that step."""
    step = record.step + 1
    match message:
        case WorkClaim(what="work", round=number, previous=previous):
            return record.seal_before(number) == previous
        case WorkClaim(what="report", round=number):
            return number < step
        case WorkClaim(what="state"):
            return False  # no strategy makes them yet
    return getattr(message, "round", getattr(message, "step", None)) == step


def _with_leaves(history: JobHistory, item: Leaves) -> JobHistory:
    claims = (each.message for each in reversed(history.pending.values()))
    claim = next((each for each in claims if each.digest() == item.claim), None)
    if not isinstance(claim, WorkClaim):
        raise Malformed("leaves without their claim")
    if item.claim in history.leaves:
        raise Conflict("these leaves are known already")
    if claim_leaves_root(item.leaves) != claim.leaves:
        raise Malformed("the leaves are not those of the claim")
    if claim.what == "report":
        findings_of(item.leaves)
    return replace(history, leaves={**history.leaves, item.claim: item.leaves})


def _with_seal(history: JobHistory, seal: Signed[Seal]) -> JobHistory:
    under = UnderSeal(tuple(history.pending.values()), history.leaves)
    derived = verify_seal(_opened(history), seal, under)
    pending = {
        name: signed
        for name, signed in history.pending.items()
        if not seal.message.last
        and isinstance(signed.message, WorkClaim)
        and signed.message.digest() not in derived.names
        and eligible(derived.record, signed.message)
    }
    left = {signed.message.digest() for signed in pending.values()}
    return replace(
        history,
        record=derived.record,
        pending=pending,
        leaves={name: each for name, each in history.leaves.items() if name in left},
        newest=SealedStep(seal, derived.pay, derived.names, derived.paid, derived.standing),
    )
