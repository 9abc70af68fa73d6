"""What each claim of work and paid audit of a job earns, line by line, and what a line waits for.

A seal's pay tree says what an account has earned in total; here that total is taken apart again.
Amounts follow the cumulative floor rule of `contracts.governance.vesting`: a line is worth what its
FLOPs add to the floor of its peer's cumulative value, in the order in which lines are resolved, and
what waits comes after what is resolved. So a line that waits may change by a base unit when a later
one is resolved before it; one that is resolved never changes.

Invariants, after every seal: of every account the amounts of its lines sum to what its pay leaf
says was earned, and those that vested to what it says has vested: what waits, is frozen, or is lost
is earned and not vested. What has vested is a row of intervals without gaps from 0 on, and what
waits follows it, so that whatever was paid of an account can be told line by line. Units: base
units, model FLOPs.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal, NamedTuple, TypeAlias

from contracts.governance.checking import NOTHING_SAID, Cause, Forfeit, Standing
from contracts.governance.job import SealedStep
from contracts.governance.pay import Lease
from contracts.governance.record import JobRecord
from contracts.governance.rounds import claims_of, flops_of
from contracts.governance.vesting import NO_STEP
from contracts.terms.amounts import NOTHING, BaseUnits, Flops, PricePerPflop, pay_for
from contracts.terms.ids import Address, Digest, PeerId, StageIndex, StepNumber
from contracts.terms.items import count
from contracts.terms.messages import Message
from contracts.terms.work import WorkClaim
from verification.docket import Docket

Held: TypeAlias = Literal["uncounted", "waiting", "frozen", "forfeited", "vested"]
WaitsFor: TypeAlias = Literal["window", "draws", "audit", "report", "verdict"]


@dataclass(slots=True)
class Line:
    """Work that a seal holds: a claim of it, or a report that counts."""

    number: int  # among the lines of its account in this job, from 1
    kind: Literal["work", "audit"]
    account: Address
    peer: PeerId
    stage: StageIndex
    step: StepNumber  # of the work that was done, or audited
    seq: int  # of the work
    sealed: StepNumber  # the step whose seal holds it
    subject: Digest  # the claim
    audited: Digest | None  # what the report is about
    worker: PeerId  # who did the work
    num_items: int
    flops: Flops  # that count; 0: it is not paid
    price: PricePerPflop
    rate: Fraction | None  # with which it is drawn; None: it never is
    resolved: StepNumber | None = None  # the step whose seal vested it, or took it
    lost_by: Cause | None = None  # why its pay was taken, if it was
    amount: BaseUnits = NOTHING  # once resolved
    start: BaseUnits = NOTHING  # once vested: what had vested for the account before it


class Standings(NamedTuple):
    """A line and where its amount stands by the newest seal."""

    line: Line
    held: Held
    amount: BaseUnits
    start: BaseUnits  # what is owed to its account before it, if anything of it is owed


class PeerPay(NamedTuple):
    """What a peer has earned by the newest seal: the parts sum to `earned`."""

    earned: BaseUnits
    vested: BaseUnits
    waiting: BaseUnits
    frozen: BaseUnits
    forfeited: BaseUnits


class Wait(NamedTuple):
    """What a line waits for before it vests, and the first seal that may vest it, if known."""

    what: WaitsFor
    step: StepNumber | None


@dataclass
class Earnings:
    """All lines of a job. Begin with `Earnings()`, then `note` each seal."""

    lines: dict[Address, list[Line]] = field(default_factory=lambda: defaultdict(list))
    by_step: dict[StepNumber, list[Line]] = field(default_factory=dict)  # of its seal
    of_subject: dict[Digest, Line] = field(default_factory=dict)
    stage_of: dict[PeerId, StageIndex] = field(default_factory=dict)  # in which a peer worked last
    worked: StepNumber = NO_STEP  # the newest step with work
    record: JobRecord | None = None  # after the newest seal
    standing: Standing = NOTHING_SAID
    _waiting: dict[PeerId, list[Line]] = field(default_factory=lambda: defaultdict(list))
    _vested: dict[Address, BaseUnits] = field(default_factory=lambda: defaultdict(lambda: NOTHING))
    _lost: dict[Address, BaseUnits] = field(default_factory=lambda: defaultdict(lambda: NOTHING))
    _lost_of_peer: dict[PeerId, BaseUnits] = field(
        default_factory=lambda: defaultdict(lambda: NOTHING)
    )
    _resolved: dict[PeerId, Flops] = field(default_factory=lambda: defaultdict(lambda: Flops(0)))

    def note(self, record: JobRecord, sealed: SealedStep, messages: Iterable[Message]) -> None:
        """Add what a seal holds, and resolve what it resolves.

        Args:
            record: After the seal.
            sealed: The seal.
            messages: Under it.
        """
        self.record, self.standing = record, sealed.standing
        leases = record.pay_leases()
        claims = claims_of(messages, "work")
        added = [*self._work(record, sealed, claims, leases), *self._audits(record, leases)]
        self.by_step[record.step] = added
        for line in added:
            line.number = len(self.lines[line.account]) + 1
            self.lines[line.account].append(line)
            self.of_subject[line.subject] = line
            if line.kind == "work":
                self.stage_of[line.peer], self.worked = line.stage, record.step
            if line.flops:
                self._waiting[line.peer].append(line)
        for forfeit in sealed.standing.forfeits:
            self._take(forfeit, record.step)
        self._vest(record)

    # ----------------------------------------------------------------------------- what is shown

    def of_account(
        self, account: Address, *, after: int = 0, limit: int | None = None
    ) -> list[Standings]:
        """Lines of an account beyond number `after`, in order."""
        own = self.lines.get(account, [])
        page = own[after:] if limit is None else own[after : after + limit]
        waiting = self._standings(account)
        return [waiting.get(line.number) or _settled(line) for line in page]

    def of_line(self, line: Line) -> Standings:
        """One line."""
        return self._standings(line.account).get(line.number) or _settled(line)

    def frozen(self, account: Address) -> BaseUnits:
        """What of an account's pay an open case holds."""
        held = self._standings(account).values()
        return BaseUnits(sum(each.amount for each in held if each.held == "frozen"))

    def forfeited(self, account: Address) -> BaseUnits:
        """What an account has lost."""
        return self._lost.get(account, NOTHING)

    def of_peer(self, peer: PeerId) -> PeerPay:
        """What a peer has earned, and where it is."""
        lease = None if self.record is None else self.record.pay_leases().get(peer)
        if lease is None or self.record is None:
            return PeerPay(NOTHING, NOTHING, NOTHING, NOTHING, NOTHING)
        lost = self._lost_of_peer.get(peer, NOTHING)
        resolved = pay_for(self._resolved.get(peer, Flops(0)), lease.price)
        earned = pay_for(self.record.pay.earned.get(peer, Flops(0)), lease.price)
        waiting, is_frozen = BaseUnits(earned - resolved), peer in self.record.pay.frozen
        return PeerPay(
            earned,
            BaseUnits(resolved - lost),
            NOTHING if is_frozen else waiting,
            waiting if is_frozen else NOTHING,
            lost,
        )

    def wait_of(self, line: Line) -> Wait | None:
        """What a line waits for that has not vested; None where it is resolved, or never paid."""
        record, standing = self.record, self.standing
        if record is None or not line.flops or line.resolved is not None:
            return None
        if line.peer in record.pay.frozen:
            return Wait("verdict", None)
        if line.peer in standing.owing:
            return Wait("report", None)
        needed = StepNumber(line.sealed + record.pay.window)
        if standing.open_since.get(line.peer, StepNumber(needed + 1)) <= needed:
            return Wait("audit", None)
        if not isinstance(record.checking, Docket):
            return Wait("window", needed)
        return Wait("draws", StepNumber(max(needed, record.step) + 1))

    # --------------------------------------------------------------------------------- one seal

    def _work(
        self,
        record: JobRecord,
        sealed: SealedStep,
        claims: Sequence[WorkClaim],
        leases: dict[PeerId, Lease],
    ) -> Iterator[Line]:
        rates = _rates(record)
        for claim in sorted(claims, key=lambda each: (each.group, each.peer, each.round, each.seq)):
            name, lease = claim.digest(), leases[claim.peer]
            flops = flops_of(record.spec, claim) if name in sealed.paid else Flops(0)
            yield Line(
                0, "work", lease.account, claim.peer, claim.group, claim.round, claim.seq,
                record.step, name, None, claim.peer, count(claim.items), flops, lease.price,
                rates.get(name),
            )  # fmt: skip

    def _audits(self, record: JobRecord, leases: dict[PeerId, Lease]) -> Iterator[Line]:
        if not isinstance(record.checking, Docket):
            return
        rates = _rates(record)
        for audit in record.checking.audits:
            case, said = audit.case, audit.said
            if case.is_of_sum:
                continue  # which is not paid
            lease, work = leases[said.auditor], self.of_subject.get(case.work)
            yield Line(
                0, "audit", lease.account, said.auditor, case.stage, case.step,
                0 if work is None else work.seq, record.step, said.report, case.subject,
                case.worker,
                0 if work is None else work.num_items, audit.flops, lease.price,
                rates.get(said.report),
            )  # fmt: skip

    def _take(self, forfeit: Forfeit, seal: StepNumber) -> None:
        """What waits of a peer, or of one of its steps, is lost: see `checking.Forfeit`."""
        peer, step = forfeit.peer, forfeit.step
        for line in [each for each in self._waiting[peer] if step in (None, each.sealed)]:
            self._resolve(line, seal)
            line.lost_by = forfeit.cause
            self._lost[line.account] = BaseUnits(self._lost[line.account] + line.amount)
            self._lost_of_peer[peer] = BaseUnits(self._lost_of_peer[peer] + line.amount)

    def _vest(self, record: JobRecord) -> None:
        """What the fold of pay waits for no more has vested."""
        left = {(peer, step) for step, work in record.pay.waiting for peer in work}
        for peer in sorted(self._waiting):
            for line in [each for each in self._waiting[peer] if (peer, each.sealed) not in left]:
                self._resolve(line, record.step)
                line.start = self._vested[line.account]
                self._vested[line.account] = BaseUnits(line.start + line.amount)

    def _resolve(self, line: Line, seal: StepNumber) -> None:
        before = self._resolved[line.peer]
        after = Flops(before + line.flops)
        self._resolved[line.peer] = after
        line.resolved = seal
        line.amount = BaseUnits(pay_for(after, line.price) - pay_for(before, line.price))
        self._waiting[line.peer].remove(line)

    def _standings(self, account: Address) -> dict[int, Standings]:
        """Lines of an account that are not resolved, by number."""
        amounts: dict[int, tuple[Line, BaseUnits]] = {}
        for peer in {line.peer for line in self._open_lines(account)}:
            flops = self._resolved[peer]
            for line in self._waiting[peer]:
                after = Flops(flops + line.flops)
                amount = pay_for(after, line.price) - pay_for(flops, line.price)
                amounts[line.number], flops = (line, BaseUnits(amount)), after
        frozen = frozenset[PeerId]() if self.record is None else self.record.pay.frozen
        found, start = {}, self._vested[account]
        for number, (line, amount) in sorted(amounts.items()):
            is_frozen = line.peer in frozen
            found[number] = Standings(line, "frozen" if is_frozen else "waiting", amount, start)
            start = start if is_frozen else BaseUnits(start + amount)
        return found

    def _open_lines(self, account: Address) -> Iterator[Line]:
        return (line for own in self._waiting.values() for line in own if line.account == account)


def _settled(line: Line) -> Standings:
    """A line that waits for no verdict and no draw any more."""
    if line.resolved is None:
        return Standings(line, "uncounted", NOTHING, NOTHING)
    return Standings(line, "forfeited" if line.lost_by else "vested", line.amount, line.start)


def _rates(record: JobRecord) -> dict[Digest, Fraction]:
    """With which rate the newest seal's messages are drawn."""
    if not isinstance(record.checking, Docket):
        return {}
    found = record.checking.undrawn.get(record.step, ())
    return {each.case.subject: each.rate for each in found}
