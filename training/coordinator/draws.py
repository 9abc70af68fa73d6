"""What draws ask of the coordinator: which event comes next, if any. Pure.

The fold of draws (`contracts.governance.checking`) lives in the record of the job and changes with
seals only; the state machine is told here what follows from it. Deadlines of audits are counted in
seals, and by the coordinator's clock besides: a seal comes quickly while a job ends, and nobody is
late by that.
"""

from collections.abc import Callable, Sequence

from contracts.governance.checking import Late
from contracts.governance.record import JobRecord
from contracts.terms.ids import Digest, PeerId, StepNumber
from contracts.terms.messages import Message, Notice, StepBeacon
from contracts.terms.moments import UnixMillis
from contracts.terms.work import WorkClaim
from training.rounds.events import Checked, Controlled, Event, NoticeDue
from training.rounds.state import Finished, RoundState


def next_event(
    state: RoundState,
    record: JobRecord,
    pending: Callable[[], Sequence[Message]],
    may_work: frozenset[PeerId] | None,
    at: UnixMillis,
) -> Event | None:
    """The next event that follows from draws, limits and bonds; None when there is none.

    Args:
        state: Of the job; not one that waits for its seal.
        record: What the seals have established.
        pending: Gives the messages that no seal holds yet; asked where work is drawn alone.
        may_work: Whom limits and bonds let work; None: everybody.
        at: Now.
    """
    if isinstance(state.phase, Finished):
        return None
    due = [
        NoticeDue("suspension", peer, state.members[peer].group, record.previous)
        for peer in sorted(record.checking.convicts & state.members.keys())
    ]
    checked = checked_now(state, record, pending, may_work, due, at)
    is_new = (checked.may_work, checked.takes_work, checked.is_clear) != (
        state.may_work,
        state.takes_work,
        state.is_clear,
    )
    if is_new or due:
        return checked
    if record.checking.is_spent and not (state.stopping or state.draining):
        return Controlled("stop", at)
    return None


def checked_now(
    state: RoundState,
    record: JobRecord,
    pending: Callable[[], Sequence[Message]],
    may_work: frozenset[PeerId] | None,
    notices: Sequence[NoticeDue],
    at: UnixMillis,
    *,
    unsealed: frozenset[Digest] = frozenset(),
    seal_wanted: bool = False,
) -> Checked:
    """What draws, limits and bonds allow now, and what else is told with it.

    Args:
        state: Of the job.
        record: What the seals have established.
        pending: Gives the messages that no seal holds yet.
        may_work: Whom limits and bonds let work; None: everybody.
        notices: That draws ask for.
        at: Now.
        unsealed: Beacons that come with it.
        seal_wanted: Whether a round without work is wanted, while none is worked on.
    """
    takes_work, is_clear = True, True
    if state.terms.is_checked:
        known = sum(isinstance(each, StepBeacon) for each in pending())
        takes_work = record.checking.takes_work(known + len(unsealed))
        is_clear = record.checking.is_clear
    return Checked(
        may_work,
        takes_work,
        is_clear,
        unsealed,
        seal_wanted or state.seal_wanted,
        tuple(notices),
        at,
    )


def late_reports(
    record: JobRecord, pending: Sequence[Message], step: StepNumber
) -> tuple[Late, ...]:
    """Reports that a Notice in the seal of `step` may call late, and none was said to be yet."""
    audit = record.spec.rules.audit
    reports = [each for each in pending if isinstance(each, WorkClaim) and each.what == "report"]
    said = {(each.peer, each.subject) for each in reports} | {
        (each.peer, each.evidence) for each in pending if isinstance(each, Notice)
    }
    return tuple(
        each
        for each in record.checking.awaited()
        if audit is not None
        and each.opened + audit.deadline <= step
        and (each.auditor, each.subject) not in said
    )


def beacon_wanted(record: JobRecord, pending: Sequence[Message]) -> StepNumber | None:
    """The step whose beacon is the next to be said; None if no beacon is needed."""
    said = {each.of for each in pending if isinstance(each, StepBeacon)}
    return next((step for step in record.checking.undrawn if step not in said), None)
