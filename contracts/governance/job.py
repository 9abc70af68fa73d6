"""A job's history as it arrives, item by item: what may come next, and what it establishes. Pure.

The order of `contracts.terms.history`: JobSpec, JobOpening, of a checked job the list of outside
auditors, LeaseAccepts, then the messages of a step, each GradCommit followed by its leaves, then
the Seal over exactly these. A LeaseAccept may also come between steps. Coordinator, members, API
and audit read histories by this one fold, so that what one accepts no other refuses.
"""

from collections.abc import Mapping
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
)
from contracts.governance.seals import UnderSeal, verify_seal
from contracts.terms.auditors import AuditorList
from contracts.terms.errors import Conflict, Equivocation, Malformed
from contracts.terms.history import Kept, Leaves, unit_leaves_root
from contracts.terms.ids import Digest
from contracts.terms.messages import (
    UNDER_A_SEAL,
    AuditReport,
    GradCommit,
    JobOpening,
    JobSpec,
    LeaseAccept,
    Message,
    Seal,
    UnitLeaf,
)
from contracts.terms.signatures import Signed, expect, verify_wallet
from contracts.terms.typed_data import Domain

Name: TypeAlias = tuple[object, ...]
"""See `Message.stated_name`."""


@dataclass(frozen=True)
class SealedStep:
    """A valid seal with its signature, the pay behind its root, and what that follows from."""

    seal: Signed[Seal]
    pay: tuple[PayLeaf, ...]
    counted: frozenset[Digest] = frozenset()  # GradCommits whose work is paid
    standing: Standing = NOTHING_SAID


@dataclass(frozen=True)
class JobHistory:
    """What the items so far establish. Begin with `JobHistory(domain, begin)`."""

    domain: Domain
    begin: Begin = unread
    spec: Signed[JobSpec] | None = None
    record: JobRecord | None = None  # from the opening on
    pending: dict[Name, Signed[Message]] = field(default_factory=dict)  # not yet sealed
    leaves: Mapping[Digest, tuple[UnitLeaf, ...]] = field(default_factory=dict)  # of pending
    newest: SealedStep | None = None
    parties: tuple[Signed[Message], ...] = ()  # JobSpec, JobOpening and LeaseAccepts, as signed


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
    step, is_report = record.step + 1, isinstance(signed.message, AuditReport)
    said = getattr(signed.message, "step", None)
    if said != step and not (is_report and said is not None and said < step):
        raise Conflict(f"{signed.message.kind}: not of step {step}")
    name = signed.message.stated_name()
    assert name is not None  # every message 3 to 8 has one
    if other := history.pending.get(name):
        if other.message == signed.message:
            raise Conflict(f"this {signed.message.kind} is known already")
        raise Equivocation(f"two values of one {signed.message.kind}")
    return replace(history, pending={**history.pending, name: signed})


def _with_leaves(history: JobHistory, item: Leaves) -> JobHistory:
    commits = (each.message for each in reversed(history.pending.values()))
    commit = next((each for each in commits if each.digest() == item.grad_commit), None)
    if not isinstance(commit, GradCommit):
        raise Malformed("leaves without their GradCommit")
    if item.grad_commit in history.leaves:
        raise Conflict("these leaves are known already")
    if unit_leaves_root(item.leaves) != commit.units_root:
        raise Malformed("the leaves are not those of the GradCommit")
    return replace(history, leaves={**history.leaves, item.grad_commit: item.leaves})


def _with_seal(history: JobHistory, seal: Signed[Seal]) -> JobHistory:
    under = UnderSeal(tuple(history.pending.values()), history.leaves)
    derived = verify_seal(_opened(history), seal, under)
    newest = SealedStep(seal, derived.pay, derived.counted, derived.standing)
    return replace(history, record=derived.record, pending={}, leaves={}, newest=newest)
