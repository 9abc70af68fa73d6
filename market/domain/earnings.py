"""Where is each line of an account's pay, why does it wait, how fast does a job spend? Pure.

A claim pays an account what has vested in total, up to its limit. That total is told line by line:
lines are paid in the order in which they vested (`verification.earnings`), so the first base units
are claimed, those that follow up to the limit may be claimed, and the rest is above it. A line's
parts sum to its amount.

How fast a job spends, when it will end, and whether its budget lasts until then is taken from its
newest seals, so it follows what the job does now. Whole numbers: paces are rounded down, what is
left to wait and to spend up.

Invariant: every line with an amount that is not claimed or uncounted has a reason. Units: base
units; moments in ms since the Unix epoch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contracts.governance.checking import Cause
from contracts.governance.escrow import due_of
from contracts.terms.amounts import NOTHING, BaseUnits
from contracts.terms.ids import Digest, StepNumber
from contracts.terms.moments import UnixMillis
from market.bodies.earnings import (
    ClaimPartView,
    LineStateName,
    OutlookView,
    PartsView,
    WaitsForCode,
    WaitsForView,
)
from market.domain.jobs import JobState
from verification.earnings import Standings, Wait


@dataclass(frozen=True)
class OwnPay:
    """What an account has in a job, in total: by its newest seal, and in the escrow."""

    earned: BaseUnits = NOTHING
    vested: BaseUnits = NOTHING
    limit: BaseUnits = NOTHING
    claimed: BaseUnits = NOTHING
    has_ended: bool = False  # no grant raises its limit any more

    @property
    def due(self) -> BaseUnits:
        """What a claim pays now."""
        return due_of(self.vested, self.limit, self.claimed)

    @property
    def over_limit(self) -> BaseUnits:
        """What has vested above the limit."""
        return BaseUnits(max(0, self.vested - max(self.limit, self.claimed)))


def _parts(**named: BaseUnits) -> PartsView:
    return PartsView(**(dict.fromkeys(PartsView.model_fields, NOTHING) | named))


def parts_of_all(pay: OwnPay, frozen: BaseUnits, forfeited: BaseUnits) -> PartsView:
    """Where all that an account earned in a job is."""
    return _parts(
        waiting=BaseUnits(max(0, pay.earned - pay.vested - frozen - forfeited)),
        frozen=frozen,
        forfeited=forfeited,
        vested=pay.due,
        over_limit=pay.over_limit,
        claimed=pay.claimed,
    )


@dataclass(frozen=True)
class Claim:
    """A claim of an account in a job."""

    until: BaseUnits  # paid with it and those before
    block: int
    transaction: Digest


@dataclass(frozen=True)
class Around:
    """What a reason depends on beside the line."""

    job_state: JobState
    ended: bool  # its last seal is here
    window: int  # W
    has_ended: bool  # the account, or the job is closed: no grant raises its limit


def paid_parts(standing: Standings, claims: Sequence[Claim]) -> tuple[ClaimPartView, ...]:
    """What of a line each claim paid, in order."""
    if standing.held != "vested":
        return ()
    found, before, end = [], 0, standing.start + standing.amount
    for claim in claims:
        amount = min(end, claim.until) - max(standing.start, before)
        if amount > 0:
            found.append(ClaimPartView.of(claim, amount=amount))
        before = max(before, claim.until)
    return tuple(found)


def parts_of(standing: Standings, pay: OwnPay) -> PartsView:
    """Where the amount of a line is."""
    if standing.held == "uncounted":
        return _parts()
    if standing.held != "vested":
        return _parts(**{standing.held: standing.amount})

    def below(total: int) -> int:
        return min(max(0, total - standing.start), standing.amount)

    claimed, payable = below(pay.claimed), below(max(pay.limit, pay.claimed))
    return _parts(
        vested=BaseUnits(payable - claimed),
        over_limit=BaseUnits(standing.amount - payable),
        claimed=BaseUnits(claimed),
    )


def state_of(standing: Standings, parts: PartsView) -> LineStateName:
    """The state of that part of a line which has farthest to go."""
    for name in ("forfeited", "frozen", "waiting", "over_limit", "vested", "claimed"):
        if getattr(parts, name):
            return name
    return standing.held


def reason_of(
    state: LineStateName,
    wait: Wait | None,
    around: Around,
    *,
    worth: BaseUnits,
    lost_by: Cause | None,
) -> WaitsForView | None:
    """Why a line waits and what ends that, or why it was lost; None where neither is so.

    Args:
        state: Of the line.
        wait: What it waits for before it vests.
        around: The job and the account.
        worth: Its amount.
        lost_by: Why it was taken, if it was.
    """
    if lost_by is not None:
        return _waits(lost_by, _LOST_BY[lost_by])
    if not worth and state == "vested":
        return None  # too little to be a base unit by itself; nothing more comes
    match state:
        case "waiting" | "frozen":
            return _before_vesting(state, wait, around)
        case "vested":
            text = "may be claimed: by the market, the account's agent, or anybody with the seal"
            return _waits("claim", text)
        case "over_limit" if around.has_ended:
            text = "above the account's limit, which no grant raises after its end: it is not paid"
            return _waits("ended", text)
        case "over_limit":
            text = "above the account's limit: waits for the coordinator to raise that by a grant"
            return _waits("grant", text)
    return None


_LOST_BY: Mapping[Cause, str] = {
    "convicted": "lost: an audit found work or a report of its peer false, and a second one agreed",
    "missing_data": "lost: its peer could not show auditors the data of work that was drawn",
    "missed_report": "lost: its peer was drawn to audit somebody else's work and no report came in "
    "time, as when a machine sleeps or is cut off; that takes the pay of its newest step",
}

_GOES_ON = (JobState.MATCHED, JobState.RUNNING, JobState.FUNDED)


def _before_vesting(state: LineStateName, wait: Wait | None, around: Around) -> WaitsForView | None:
    if not around.ended and around.job_state not in _GOES_ON:
        what = "its peer was accused, and " if state == "frozen" else ""
        text = f"{what}the job ended without a last seal: it vests if its coordinator seals again"
        return _waits("seal", text)
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


def _waits(code: WaitsForCode, sentence: str, step: StepNumber | None = None) -> WaitsForView:
    return WaitsForView(code=code, sentence=sentence, step=step)


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
) -> OutlookView:
    """What comes of a job of so many steps after its newest seal."""
    left = max(0, steps - newest.step)
    ends_at = UnixMillis(newest.at + _up(left * pace.millis, pace.steps))
    spent = BaseUnits(newest.earned + _up(left * pace.spent, pace.steps))
    is_short = spent > budget
    covered = max(0, budget - newest.earned) * pace.steps // pace.spent if is_short else 0
    spent_up = UnixMillis(newest.at + _up(covered * pace.millis, pace.steps))
    return OutlookView(
        ends_at=ends_at,
        spent_then=spent,
        lasts=not is_short,
        spent_up_at_step=newest.step + covered + 1 if is_short else None,
        spent_up_at=spent_up if is_short else None,
    )


def _up(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
