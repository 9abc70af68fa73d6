"""What draws ask of the coordinator: which event comes next, if any. Pure.

The fold of draws (`contracts.governance.checking`) lives in the record of the job and changes with
seals only; the state machine is told here what follows from it. Deadlines of audits are counted in
seals, and by the coordinator's clock besides: a seal comes quickly while a job ends, and nobody is
late by that.
"""

from collections.abc import Sequence

from contracts.governance.checking import Late
from contracts.governance.record import JobRecord
from contracts.terms.ids import StepNumber
from contracts.terms.messages import AuditReport, Message, Notice, StepBeacon
from contracts.terms.moments import UnixMillis
from training.swarm.events import Checked, Event, NoticeDue, StopAsked
from training.swarm.state import Finished, SwarmState


def next_event(
    state: SwarmState, record: JobRecord, pending: Sequence[Message], at: UnixMillis
) -> Event | None:
    """The next event that follows from draws; None when there is none.

    Args:
        state: Of the job; not one that waits for its seal.
        record: What the seals have established.
        pending: Messages that no seal holds yet.
        at: Now.
    """
    if not state.terms.is_checked or isinstance(state.phase, Finished):
        return None
    beacons = sum(isinstance(each, StepBeacon) for each in pending)
    takes_work, is_clear = record.checking.takes_work(beacons), record.checking.is_clear
    if (takes_work, is_clear) != (state.takes_work, state.is_clear):
        return Checked(takes_work, is_clear, at)
    if record.checking.is_spent and not (state.stopping or state.draining):
        return StopAsked(at)
    for peer in sorted(record.checking.convicts & state.members.keys()):
        member = state.members[peer]
        return NoticeDue("suspension", peer, member.stage, record.previous, at)
    return None


def late_reports(
    record: JobRecord, pending: Sequence[Message], step: StepNumber
) -> tuple[Late, ...]:
    """Reports that a Notice in the seal of `step` may call late, and none was said to be yet."""
    audit = record.spec.rules.audit
    said = {(each.auditor, each.subject) for each in pending if isinstance(each, AuditReport)} | {
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
