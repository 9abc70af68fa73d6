"""What the demo shows at its end, and what must hold for it to have succeeded."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from contracts.terms.amounts import FLOPS_PER_PFLOP, format_tokens, in_tokens, read_tokens
from contracts.terms.ids import Address, PeerId
from contracts.terms.moments import UnixMillis, UnixSeconds
from tallystick.demo.cast import LATE, LIES_FROM, MACHINES, OUTBID, Machine, Notes
from tallystick.demo.checked import Checked
from tallystick.demo.shares import (
    JobWork,
    LogLine,
    Loss,
    Share,
    all_joined_at,
    loss_of,
    sealed_at,
    shares,
)

MAX_DIFFERENCE = 1e-4  # relative, of the loss of each step to the plain run; the codec is off
MIN_IMPROVEMENT = 0.15  # of validation perplexity over the byte unigram
MAX_PAY_SECONDS = 5.0
"""An aim, from the last seal to the last claim."""
MAX_READY_SECONDS = 20.0
"""An aim: the report says whether it was reached; a slow machine fails no demo."""


@dataclass(frozen=True)
class Money:
    """Money of the job, from the chain at one block; base units."""

    funded: int  # by the poster
    reclaimed: int  # back with it
    free: int  # the poster can take it back
    unspent: int  # limits above what was earned: free at `free_at`
    claimed: Mapping[Address, int]
    unclaimed: int  # earned, and neither vested nor ever anybody else's
    burned: int  # of stakes
    bonded: int  # of stakes, at the end
    free_at: UnixSeconds
    disagreements: Sequence[str]  # between storage and events of the escrow, or the token
    seal_to_claim: float  # seconds from the last seal to the last claim
    block: int
    escrow: Address
    seals: Address


@dataclass(frozen=True)
class Swarm:
    """Who did what: from the kept messages, the log lines of the job's processes, our notes."""

    work: JobWork
    lines: Sequence[LogLine]
    notes: Notes
    machines: Mapping[Address, Machine]
    victim: PeerId | None

    @property
    def shares(self) -> tuple[Share, ...]:
        """A row for each provider."""
        slowdowns = {account: machine.slowdown for account, machine in self.machines.items()}
        return shares(self.work, slowdowns)

    @property
    def loss(self) -> Loss | None:
        """What the kill cost; None: there was none, or no seal after it."""
        if self.notes.killed_at is None or self.victim is None:
            return None
        return loss_of(self.victim, self.notes.killed_at, self.lines)

    @property
    def ready_seconds(self) -> float | None:
        """From the start of the first provider until the coordinator had all nine peers."""
        return _seconds(self.notes.begun_at, all_joined_at(len(MACHINES), self.lines))

    @property
    def late_seconds(self) -> float | None:
        """From the late provider's start to the seal that holds its first unit."""
        late = next(account for account, each in self.machines.items() if each == LATE)
        first = self.work.first_step(late)
        return _seconds(self.notes.late_at, None if first is None else sealed_at(first, self.lines))


def _seconds(since: UnixMillis | None, until: UnixMillis | None) -> float | None:
    return None if since is None or until is None else (until - since) / 1000


@dataclass(frozen=True)
class Report:
    """All figures of a demo."""

    losses: list[float]
    reference: list[float] | None
    validation_perplexity: float  # the newest; infinite: there is none
    validated_step: int
    unigram_perplexity: float
    flops: int  # of all units
    price: int
    ceiling: int
    vested: int
    money: Money
    swarm: Swarm
    checked: Checked
    verdict: str
    phases: dict[str, float]

    @property
    def difference(self) -> float:
        """Greatest relative difference to the plain run before the first lie; lengths differ: inf.

        What was falsified and applied stays, so later steps are those of another run.
        """
        return max(self._differences[: LIES_FROM - 1], default=0.0)

    @property
    def damage(self) -> float:
        """The same from the first lie on."""
        return max(self._differences[LIES_FROM - 1 :], default=0.0)

    @property
    def _differences(self) -> list[float]:
        if self.reference is None:
            return []
        if len(self.reference) != len(self.losses):
            return [math.inf]
        pairs = zip(self.losses, self.reference, strict=True)
        return [abs(ours - plain) / abs(plain) for ours, plain in pairs]

    @property
    def _is_losing_ask(self) -> bool:
        return self.price == read_tokens(OUTBID.ask)

    def problems(self) -> list[str]:
        """What does not hold."""
        money, bound = self.money, (1 - MIN_IMPROVEMENT) * self.unigram_perplexity
        paid = sum(money.claimed.values())
        vested = {leaf.account: leaf.vested for leaf in self.swarm.work.pay.values() if leaf.vested}
        checks = {
            f"perplexity {self.validation_perplexity:.2f} is not below {bound:.2f}": (
                self.validation_perplexity <= bound
            ),
            f"loss differs from the plain run by {self.difference:.1e}": (
                self.difference <= MAX_DIFFERENCE
            ),
            "the budget is not paid + not vested + unspent + free + back": (
                money.funded
                == paid + money.unclaimed + money.unspent + money.free + money.reclaimed
            ),
            f"the escrow disagrees with its events: {', '.join(money.disagreements)}": (
                not money.disagreements
            ),
            "paid is not what has vested": paid == self.vested,
            "somebody was paid something else than the seals say": money.claimed == vested,
            f"{self.swarm.work.lost} units were lost": self.swarm.work.lost == 0,
            "nobody was killed, or nothing was sealed after it": self.swarm.loss is not None,
            "the late provider did no paid work": self.swarm.late_seconds is not None,
            f"the price is not the ask of {OUTBID.name}": self._is_losing_ask,
        }
        broken = [problem for problem, holds in checks.items() if not holds]
        return [*broken, *self.checked.problems()]

    def lines(self) -> Iterator[str]:
        """The report: five lines of what happened, then every figure."""
        money, gain = self.money, 1 - self.validation_perplexity / self.unigram_perplexity
        paid = sum(money.claimed.values())
        units = sum(row.units for row in self.swarm.shares)
        yield "== report"
        yield from self._in_short()
        yield f"loss                {self.losses[0]:.4f} first, {self.losses[-1]:.4f} last"
        yield (
            f"validation          perplexity {self.validation_perplexity:.2f} after step "
            f"{self.validated_step}, byte unigram {self.unigram_perplexity:.2f} ({gain:.0%} below)"
        )
        if self.reference is not None:
            yield (
                f"plain run           greatest relative difference of any step before "
                f"{LIES_FROM}, the first lie: {self.difference:.1e}; after it: {self.damage:.1e}"
            )
        yield (
            f"work                {units} units in {self.swarm.work.num_stages} stages, "
            f"{self.flops / FLOPS_PER_PFLOP:.6f} PFLOP"
        )
        why = f"the ask of {OUTBID.name}, which lost" if self._is_losing_ask else "nobody's ask"
        yield (
            f"price               {format_tokens(self.price)} tokens/PFLOP, {why} "
            f"(ceiling {format_tokens(self.ceiling)})"
        )
        yield from self._providers()
        yield from self._events()
        yield (
            f"budget              {money.funded} = {paid} paid + {money.unclaimed} earned and not "
            f"vested + {money.unspent} unspent + {money.free} free + {money.reclaimed} back "
            f"(base units, chain, block {money.block})"
        )
        yield (
            f"pay                 {money.seal_to_claim:.1f} s from the last seal to the last claim "
            f"(aim {MAX_PAY_SECONDS:.0f})"
        )
        yield (
            f"free later          {format_tokens(money.unspent)} tokens of limits and "
            f"{format_tokens(money.bonded)} of stakes, at "
            f"{datetime.fromtimestamp(money.free_at, UTC):%H:%M:%S} UTC; "
            f"{format_tokens(money.burned)} of stake burned"
        )
        yield from self.checked.lines()
        yield f"audit               {self.verdict}"
        yield "phases"
        for name, seconds in self.phases.items():
            yield f"                    {seconds:7.1f} s  {name}"

    def _in_short(self) -> Iterator[str]:
        """Who trained, what it cost, who cheated, what was audited, where the money is."""
        work, money = self.swarm.work, self.money
        workers = {row.account for row in self.swarm.shares if row.units}
        yield (
            f"{len(workers)} providers trained a model of {work.num_stages} stages for "
            f"{work.num_steps} steps: its loss went from {self.losses[0]:.2f} to "
            f"{self.losses[-1]:.2f}, {work.lost} units were lost."
        )
        paid, forfeited = sum(money.claimed.values()), sum(work.forfeited.values())
        yield (
            f"It cost the poster {in_tokens(paid + money.unclaimed)} of the "
            f"{in_tokens(money.funded)} tokens that it had put into escrow."
        )
        cheats = "; ".join(self.checked.cheats())
        yield (
            f"{cheats}; {in_tokens(forfeited)} tokens of their pay were forfeited."
            if cheats
            else "Nobody was found to cheat."
        )
        yield (
            f"{self.checked.num_repeated} pieces of work were drawn by lot and done again by "
            f"others ({self.checked.extra:.0%} more computing); a fresh process then checked the "
            f"whole job from one file, and found it {self.verdict.partition(':')[0]}."
        )
        back = money.reclaimed + money.free
        yield (
            f"Of {in_tokens(money.funded)} tokens put in, {in_tokens(paid)} are paid to those who "
            f"worked, {in_tokens(money.unclaimed)} were earned and did not vest, {in_tokens(back)} "
            f"are back with the poster, {in_tokens(money.unspent)} come back later."
        )

    def _providers(self) -> Iterator[str]:
        columns = (
            "name          slowed  stage  units   share  by speed  earned    paid      forfeited"
        )
        yield f"providers           {columns}"
        for row in self.swarm.shares:
            machine = self.swarm.machines[row.account]
            of_stage = max(1, row.of_stage)
            paid = format_tokens(self.money.claimed.get(row.account, 0))
            lost = format_tokens(self.swarm.work.forfeited.get(row.account, 0))
            yield (
                f"                    {machine.name:12} {machine.slowdown:6g}x {row.stage:6} "
                f"{row.units:6} {row.units / of_stage:7.1%} {row.by_speed / of_stage:9.1%}  "
                f"{format_tokens(row.pay)}  {paid}  {lost}"
            )
        yield (
            "                    share: of its stage's units; by speed: the same, had speed alone "
            "split every step"
        )

    def _events(self) -> Iterator[str]:
        loss, late = self.swarm.loss, self.swarm.late_seconds
        ready = self.swarm.ready_seconds
        if ready is not None:
            yield (
                f"ready               all {len(MACHINES)} after {ready:.1f} s "
                f"(aim {MAX_READY_SECONDS:.0f}), from the first agent's start"
            )
        if loss is not None:
            yield (
                f"kill                {self.swarm.notes.victim}: {loss.seconds:.1f} s from SIGKILL "
                f"to the next sealed step; "
                f"units {loss.rerouted} re-routed, {loss.redone} redone, "
                f"{self.swarm.work.lost} lost"
            )
        if late is not None:
            yield (
                f"late joiner         {LATE.name}: {late:.1f} s from its start to its first paid "
                "unit"
            )
