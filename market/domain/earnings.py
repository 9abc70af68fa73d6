"""Where is each line of an account's pay, why does it wait, how fast does a job spend? Pure.

What a job has paid an account, epoch by epoch, is told line by line: lines are paid in the order in
which they vested, those that wait come last (`verification.earnings`). So a line may be in two
epochs at once, and its parts sum to its amount.

How fast a job spends, when it will end, and whether its budget lasts until then is taken from its
newest seals, so it follows what the job does now. Whole numbers: paces are rounded down, what is
left to wait and to spend up.

Invariant: every line with an amount that is not claimed or uncounted has a reason. Units: base
units; moments in ms since the Unix epoch unless named seconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal

from contracts.governance.checking import Cause
from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Digest, EpochNumber, StepNumber
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.bodies.earnings import LineStateName, OutlookView, WaitsForCode, WaitsForView
from market.domain.jobs import JobState
from verification.earnings import Standings, Wait

NOTHING = BaseUnits(0)


@dataclass(frozen=True)
class Parts:
    """Where the base units of a line, or of many, are. They sum to what was earned."""

    waiting: BaseUnits = NOTHING
    frozen: BaseUnits = NOTHING
    forfeited: BaseUnits = NOTHING
    vested: BaseUnits = NOTHING
    debited: BaseUnits = NOTHING
    final: BaseUnits = NOTHING
    claimed: BaseUnits = NOTHING

    @property
    def total(self) -> BaseUnits:
        """All of it."""
        return BaseUnits(sum(getattr(self, each.name) for each in fields(self)))


@dataclass(frozen=True)
class PaidEpoch:
    """An epoch that debited a job, as it stands for one account; `until` never falls."""

    epoch: EpochNumber
    root: Digest
    state: Literal["planned", "proposed", "final"]
    transaction: Digest | None
    window_ends: UnixSeconds | None
    until: BaseUnits  # what the job has paid the account up to this epoch
    is_claimed: bool = False


@dataclass(frozen=True)
class PartPaid:
    """What of a line an epoch pays."""

    epoch: PaidEpoch
    amount: BaseUnits


@dataclass(frozen=True)
class Around:
    """What a reason depends on beside the line."""

    job_state: JobState
    ended: bool  # its last seal is here
    now: UnixMillis
    window: int  # W
    close_ends: UnixSeconds | None  # of the response window; None: nobody closes the job
    next_epoch: UnixMillis  # not before


def paid_parts(standing: Standings, epochs: Sequence[PaidEpoch]) -> tuple[PartPaid, ...]:
    """What of a line each epoch pays; `epochs` ascend, and each pays what those before left."""
    if standing.held not in ("waiting", "vested"):
        return ()
    found, before, end = [], NOTHING, standing.start + standing.amount
    for epoch in epochs:
        amount = min(end, epoch.until) - max(standing.start, before)
        if amount > 0:
            found.append(PartPaid(epoch, BaseUnits(amount)))
        before = max(before, epoch.until)
    return tuple(found)


def parts_of(standing: Standings, paid: Sequence[PartPaid]) -> Parts:
    """Where the amount of a line is. A planned epoch has paid nothing yet."""
    sums = {"debited": 0, "final": 0, "claimed": 0}
    for each in paid:
        if each.epoch.state != "planned":
            sums[_paid_state(each.epoch)] += each.amount
    left = BaseUnits(standing.amount - sum(sums.values()))
    held = {} if standing.held == "uncounted" else {standing.held: left}
    return Parts(**held, **{name: BaseUnits(amount) for name, amount in sums.items()})


def state_of(standing: Standings, parts: Parts) -> LineStateName:
    """The state of that part of a line which has farthest to go."""
    for name in ("forfeited", "frozen", "waiting", "vested", "debited", "final", "claimed"):
        if getattr(parts, name):
            return name
    return standing.held


def reason_of(
    state: LineStateName,
    wait: Wait | None,
    paid: Sequence[PartPaid],
    around: Around,
    *,
    worth: BaseUnits,
    lost_by: Cause | None,
    is_anchored: bool,
    above_cap: bool,
) -> WaitsForView | None:
    """Why a line waits, or was lost; None where neither is so.

    Args:
        state: Of the line.
        wait: What it waits for before it vests.
        paid: The epochs that pay it.
        around: The job, the clock, and the next epoch.
        worth: Its amount.
        lost_by: Why it was taken, if it was.
        is_anchored: Whether the seal that vested it is in a batch on chain.
        above_cap: Whether that seal vests more than the next epoch may debit.
    """
    if lost_by is not None:
        return _waits(lost_by, _LOST_BY[lost_by])
    if not worth and state == "vested":
        return None  # too little to be a base unit by itself; nothing more comes
    match state:
        case "waiting" | "frozen":
            return _before_vesting(state, wait, around)
        case "vested":
            return _before_debit(paid, around, is_anchored=is_anchored, above_cap=above_cap)
        case "debited":
            return _before_final(paid, around)
        case "final":
            return _waits("claim", "not claimed yet: its account may claim it at any time")
    return None


_LOST_BY: Mapping[Cause, str] = {
    "convicted": "lost: an audit found work or a report of its peer false, and a second one agreed",
    "missing_data": "lost: its peer could not show auditors the data of work that was drawn",
    "missed_report": "lost: its peer was drawn to audit somebody else's work and no report came in "
    "time, as when a machine sleeps or is cut off; that takes the pay of its newest step",
}

_BEFORE_RUNNING_ENDED = (JobState.MATCHED, JobState.RUNNING, JobState.FUNDED)


def _before_vesting(state: LineStateName, wait: Wait | None, around: Around) -> WaitsForView | None:
    if not around.ended and around.job_state not in _BEFORE_RUNNING_ENDED:
        return _by_close(state, around)
    if wait is None:
        return None
    window = f"W = {around.window}"
    match wait.what:
        case "window":
            text = f"vests with the seal of step {wait.step} ({window}), or the last one"
            return _waits("window", text, step=wait.step)
        case "draws":
            assert wait.step is not None  # draws come with a seal
            text = (
                f"waits for the draws of {window} more steps: vests with the seal of step "
                f"{wait.step} at the earliest, or the last one"
            )
            return _waits("draws", text, step=wait.step)
        case "audit":
            return _waits("audit", f"a draw of its peer is being audited ({window})")
        case "report":
            return _waits("report", "its peer owes a report on somebody else's work")
    text = "its peer was accused: frozen until another auditor has looked"
    return _waits("verdict", text)


def _by_close(state: LineStateName, around: Around) -> WaitsForView:
    """The job ended without a last seal."""
    at = None if around.close_ends is None else UnixMillis(around.close_ends * 1000)
    if state == "frozen":
        text = "the job ended while its peer was accused: it is not due, and goes back"
        return _waits("close", text, at=at)
    if at is None:
        return _waits("close", "the job ended without a last seal: it is due once it is closed")
    if around.now < at:
        return _waits("close", "the job is being closed: what it earned is due then", at=at)
    text = "the job is closed: epochs pay what the close found due"
    return _waits("close", text, at=around.next_epoch)


def _before_debit(
    paid: Sequence[PartPaid], around: Around, *, is_anchored: bool, above_cap: bool
) -> WaitsForView:
    planned = [each.epoch for each in paid if each.epoch.state == "planned"]
    if planned:
        text = f"epoch {planned[0].epoch} is planned, and is being sent to the chain"
        return _waits("proposal", text, at=around.now)
    if not is_anchored:
        return _waits("anchor", "the seal that vested it is not confirmed on chain yet")
    if above_cap:
        text = "the job's cap of an epoch is used up: a later epoch debits it"
        return _waits("cap", text, at=around.next_epoch)
    return _waits("epoch", "in no epoch yet: the next one debits it", at=around.next_epoch)


def _before_final(paid: Sequence[PartPaid], around: Around) -> WaitsForView:
    pending = [each.epoch for each in paid if each.epoch.state == "proposed"]
    epoch = pending[-1]
    if epoch.window_ends is None or epoch.window_ends * 1000 <= around.now:
        return _waits("finalization", f"epoch {epoch.epoch} is over, and is being booked")
    text = f"the challenge window of epoch {epoch.epoch} is open"
    return _waits("challenge", text, at=UnixMillis(epoch.window_ends * 1000))


def _paid_state(epoch: PaidEpoch) -> str:
    if epoch.is_claimed:
        return "claimed"
    return "final" if epoch.state == "final" else "debited"


def _waits(
    code: WaitsForCode, sentence: str, step: StepNumber | None = None, at: UnixMillis | None = None
) -> WaitsForView:
    return WaitsForView(code=code, sentence=sentence, step=step, at=at)


# --------------------------------------------------------------------------- how fast a job spends

RECENT = 16
"""Steps that a pace is taken of."""
MILLIS_AN_HOUR = 3_600_000


@dataclass(frozen=True)
class Sealed:
    """A seal: what all had earned by it, and when it came."""

    step: int
    earned: BaseUnits
    at: UnixMillis


@dataclass(frozen=True)
class Pace:
    """Over `steps` steps in `millis`, `spent` was earned; none of the two is 0."""

    steps: int
    millis: int
    spent: BaseUnits

    @property
    def millis_a_step(self) -> int:
        """Time from seal to seal."""
        return self.millis // self.steps

    @property
    def spent_a_step(self) -> BaseUnits:
        """What a step costs."""
        return BaseUnits(self.spent // self.steps)

    @property
    def spent_an_hour(self) -> BaseUnits:
        """What an hour costs."""
        return BaseUnits(self.spent * MILLIS_AN_HOUR // self.millis)


def pace_of(seals: Sequence[Sealed]) -> Pace | None:
    """The pace from the first of `seals` to the last; None of fewer than two, or of one moment."""
    if len(seals) < 2:
        return None
    first, last = seals[0], seals[-1]
    if last.step <= first.step or last.at <= first.at:
        return None
    return Pace(last.step - first.step, last.at - first.at, BaseUnits(last.earned - first.earned))


def outlook_of(
    pace: Pace,
    newest: Sealed,
    *,
    steps: int,
    budget: BaseUnits,
    epoch_cap: BaseUnits,
    epoch_millis: int,
) -> OutlookView:
    """What comes of a job of so many steps after its newest seal."""
    left = max(0, steps - newest.step)
    ends_at = UnixMillis(newest.at + _up(left * pace.millis, pace.steps))
    spent = BaseUnits(newest.earned + _up(left * pace.spent, pace.steps))
    an_epoch = BaseUnits(pace.spent * epoch_millis // pace.millis)
    is_short = spent > budget
    covered = max(0, budget - newest.earned) * pace.steps // pace.spent if is_short else 0
    spent_up = UnixMillis(newest.at + _up(covered * pace.millis, pace.steps))
    return OutlookView(
        steps_left=left,
        ends_at=ends_at,
        spent_then=spent,
        lasts=not is_short,
        spent_up_at_step=newest.step + covered + 1 if is_short else None,
        spent_up_at=spent_up if is_short else None,
        an_epoch=an_epoch,
        is_above_cap=an_epoch > epoch_cap,
    )


def _up(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
