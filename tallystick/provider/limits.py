"""May an account of ours begin another round of a job, by what we see ourselves?

The agent reads bond, limit and ends from its own node, at the block with the job's confirmations,
and pay from the file that its own peer writes at each seal. So neither market nor coordinator can
make it work for what no seal could pay: `contracts.governance.limits.why_idle` decides, with the
numbers of this account. While the node does not answer, what was read last counts: a limit only
falls by our own quitting, so what may be missed is an end. Amounts are base units.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from contracts.chain.contracts import Contracts
from contracts.governance.claims import SealedPay
from contracts.governance.escrow import Budget, Channel, EscrowTimes
from contracts.governance.limits import (
    KEPT_ROUNDS,
    Accrual,
    PayHistory,
    lag_of,
    may_stay,
    planned_round,
    why_idle,
)
from contracts.governance.pay import PayLeaf
from contracts.terms.amounts import BaseUnits, PricePerPflop, format_tokens
from contracts.terms.errors import Refused, Unavailable
from contracts.terms.ids import Address, JobId, StepNumber
from contracts.terms.items import count
from contracts.terms.messages import JobSpec, Seal
from market.bodies.jobs import StepReport

LOOK_SECONDS = 2.0


class OwnPay:
    """What an account has earned in a job after each seal, of the seals that were looked at."""

    def __init__(self, account: Address, lag_rounds: int) -> None:
        self._account, self._history = account, PayHistory(lag_rounds)
        self._last: tuple[StepNumber, PayLeaf] | None = None

    def add(self, pay: SealedPay) -> None:
        """Take the newest seal; what was earned since the last one we saw is shared by the rounds.

        Of the first one nobody knows in how many rounds it was earned: it has none.
        """
        step, leaf = pay.seal.message.step, leaf_of(pay, self._account)
        before = self._last
        if before is not None and step <= before[0]:
            return
        self._last = (step, leaf)
        lost = {self._account: pay.forfeited.get(self._account, BaseUnits(0))}
        earned = [leaf.earned]
        if before is not None:
            rounds, more = step - before[0], leaf.earned - before[1].earned
            earned = [
                BaseUnits(before[1].earned + more * each // rounds) for each in range(1, rounds + 1)
            ]
        for amount in earned:
            vested = BaseUnits(min(amount, leaf.vested))
            self._history.add([PayLeaf(self._account, amount, vested)], lost)

    def accrual(self, planned: int) -> Accrual:
        """See `PayHistory.accrual`."""
        return self._history.accrual(self._account, planned)


def leaf_of(pay: SealedPay | None, account: Address) -> PayLeaf:
    """What `pay` says of an account."""
    leaves = () if pay is None else pay.pay
    empty = PayLeaf(account, BaseUnits(0), BaseUnits(0))
    return next((leaf for leaf in leaves if leaf.account == account), empty)


@dataclass
class _Looked:
    """What is known of one job."""

    pay: OwnPay
    channel: Channel | None = None
    budget: Budget = field(default_factory=Budget)
    at: float | None = None  # when the chain was asked
    error: Refused | Unavailable | None = None  # of the newest try


@dataclass(frozen=True)
class Idleness:
    """Why our machines are not to work in a job, in one sentence."""

    why: str
    may_stay: bool = False  # a machine that is there waits there: it is only a grant that is late


class Guard:
    """Decides for one account, job by job."""

    def __init__(
        self,
        account: Address,
        contracts: Contracts,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._account, self._contracts, self._monotonic = account, contracts, monotonic
        self._jobs: dict[JobId, _Looked] = {}

    async def why_idle(
        self, spec: JobSpec, pay: SealedPay | None, *, stake: int, prices: Sequence[PricePerPflop]
    ) -> Idleness | None:
        """Why our machines do not work in a job now; None: they do.

        Args:
            spec: The job.
            pay: What the newest seal that we have says.
            stake: The largest that our leases there ask for.
            prices: Of our leases there.
        """
        job = spec.job()
        if pay is not None and ends_work(pay.seal.message, spec):
            return None  # what is left are audits, without which nothing vests
        found = self._jobs.setdefault(job, _Looked(OwnPay(self._account, lag_of(spec))))
        if pay is not None:
            found.pay.add(pay)
        await self._read(spec, job, found)
        if found.channel is None:
            return Idleness(f"the chain does not say what it holds for us: {found.error}")
        accrual = found.pay.accrual(planned_round(spec, prices))
        channel, lag = found.channel, lag_of(spec)
        if pay is not None and pay.left_out >= lag:
            return Idleness(f"none of our work in its last {pay.left_out} rounds was sealed")
        idle = why_idle(accrual, channel, found.budget, stake=stake, lag_rounds=lag)
        if idle is None:
            return None
        return Idleness(
            in_words(idle, accrual, channel, found.budget, stake, lag),
            may_stay=idle == "no_limit" and may_stay(accrual, channel, lag_rounds=lag),
        )

    async def _read(self, spec: JobSpec, job: JobId, found: _Looked) -> None:
        now = self._monotonic()
        if found.at is not None and now - found.at < LOOK_SECONDS:
            return
        found.at = now
        try:
            # `confirmations` counts the block itself, the node those on top of it.
            at = await self._contracts.chain.head(confirmations=spec.confirmations - 1)
            escrow, place = self._contracts.escrow, (job, self._account)
            channel = (await escrow.channels([place], at))[place]
            found.channel, found.budget = channel, (await escrow.budgets([job], at))[job]
            found.error = None
        except (Refused, Unavailable) as error:  # a node that refuses says nothing, too
            found.error = error


def ends_work(seal: Seal, spec: JobSpec) -> bool:
    """Whether no round after this seal has items."""
    sealed = seal.next - count(seal.unsealed)
    return seal.last or sealed >= spec.batch.steps * spec.batch.units_per_step


def in_words(
    idle: str, pay: Accrual, channel: Channel, budget: Budget, stake: int, lag_rounds: int
) -> str:
    """See `contracts.governance.limits.Idle`, with the numbers."""
    match idle:
        case "ended" if budget.closed_at:
            return "its poster has closed it"
        case "ended":
            return "our account has ended there"
        case "no_bond":
            return (
                f"{_tokens(channel.stake)} of the {_tokens(stake)} tokens that it asks to be "
                "bonded are confirmed"
            )
        case "no_limit":
            return (
                f"the limit of {_tokens(channel.limit)} tokens that is confirmed for us leaves no "
                f"room for {KEPT_ROUNDS} rounds of {_tokens(pay.round)} beyond the "
                f"{_tokens(pay.earned)} earned"
            )
    return (
        f"{_tokens(pay.at_risk)} tokens that we earned have not vested, more than the pay of "
        f"{lag_rounds} rounds of {_tokens(pay.round)}"
    )


def check_tail(spec: JobSpec, times: EscrowTimes, round_seconds: float | None) -> None:
    """Refuse a job whose pay vests too late to be claimed after an end.

    Args:
        spec: The job.
        times: Of the escrow.
        round_seconds: That a round takes; None: nobody knows yet, and nothing is refused.

    Raises:
        Refused: what was earned before an end could vest after limits have flowed back.
    """
    room = times.tail - times.announce - times.execute - times.margin
    takes = lag_of(spec) * (round_seconds or 0.0)
    if takes > room:
        fits = -int(-takes // 1) + times.announce + times.execute + times.margin
        raise Refused(
            f"pay of this job takes {takes:.0f} s to vest, and the escrow leaves {room} s after an "
            f"end: a TAIL of {fits} s would fit",
            takes=takes,
            fits=fits,
        )


def round_seconds(reports: Sequence[StepReport]) -> float | None:
    """How long a round took of late, as the coordinator reports; None: too few reports."""
    steps = {report.step: report.at for report in reports}
    first, last = min(steps, default=0), max(steps, default=0)
    return (steps[last] - steps[first]) / 1000 / (last - first) if last > first else None


def _tokens(amount: int) -> str:
    return format_tokens(BaseUnits(amount))
