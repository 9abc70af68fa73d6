"""What the demo shows at its end, and what must hold for it to have succeeded."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from contracts.terms.amounts import format_tokens
from contracts.terms.ids import Address, Digest

MAX_DIFFERENCE = 1e-5  # relative, of the loss of each step to the plain run
MIN_IMPROVEMENT = 0.15  # of validation perplexity over the byte unigram
MIN_EPOCHS = 2


@dataclass(frozen=True)
class ProcessRow:
    """A process of the run."""

    name: str
    pid: int
    parent: int
    ports: list[int]


@dataclass(frozen=True)
class Settled:
    """Money of the job, from the chain at one block; base units."""

    escrowed: int
    claimed: int
    refunded: int
    remaining: int
    epochs: int
    provider: Address
    block: int
    block_hash: Digest
    settlement: Address


@dataclass(frozen=True)
class Report:
    """All figures of a demo."""

    losses: list[float]
    reference: list[float] | None
    validation_perplexity: float
    unigram_perplexity: float
    units: int
    unit_flops: int
    price: int
    ceiling: int
    earned: int
    settled: Settled
    verdict: str
    processes: list[ProcessRow]
    phases: dict[str, float]

    @property
    def difference(self) -> float:
        """Greatest relative difference to the plain run at any step; inf if lengths differ."""
        if self.reference is None:
            return 0.0
        if len(self.reference) != len(self.losses):
            return math.inf
        pairs = zip(self.losses, self.reference, strict=True)
        return max(abs(ours - plain) / abs(plain) for ours, plain in pairs)

    def problems(self) -> list[str]:
        """What does not hold."""
        money, bound = self.settled, (1 - MIN_IMPROVEMENT) * self.unigram_perplexity
        checks = {
            f"perplexity {self.validation_perplexity:.2f} is not below {bound:.2f}": (
                self.validation_perplexity <= bound
            ),
            f"loss differs from the plain run by {self.difference:.1e}": (
                self.difference <= MAX_DIFFERENCE
            ),
            "escrow in is not paid + refunded + remaining": (
                money.escrowed == money.claimed + money.refunded + money.remaining
            ),
            f"only {money.epochs} epochs settled": money.epochs >= MIN_EPOCHS,
            "paid is not what was earned": money.claimed == self.earned,
        }
        return [problem for problem, holds in checks.items() if not holds]

    def lines(self) -> Iterator[str]:
        """The report."""
        money, gain = self.settled, 1 - self.validation_perplexity / self.unigram_perplexity
        yield "== report"
        yield f"loss                {self.losses[0]:.4f} first, {self.losses[-1]:.4f} last"
        yield (
            f"validation          perplexity {self.validation_perplexity:.2f}, byte unigram "
            f"{self.unigram_perplexity:.2f} ({gain:.0%} below)"
        )
        plain = "not run" if self.reference is None else f"{self.difference:.1e}"
        yield f"plain run           greatest relative difference of any step: {plain}"
        yield f"work                {self.units} units, {self.units * self.unit_flops} FLOPs"
        yield (
            f"price               {format_tokens(self.price)} tokens/PFLOP (ceiling "
            f"{format_tokens(self.ceiling)}), the lowest losing ask"
        )
        yield f"paid                {format_tokens(money.claimed)} to 0x{money.provider.hex()}"
        yield (
            f"escrow              {money.escrowed} = {money.claimed} paid + {money.refunded} "
            f"refunded + {money.remaining} remaining (base units, chain, block {money.block})"
        )
        yield f"epochs              {money.epochs} settled"
        yield "checking            off: work unchecked"
        yield f"audit               {self.verdict}"
        yield "processes           name, pid, parent, port"
        for row in self.processes:
            ports = ", ".join(map(str, row.ports))
            yield f"                    {row.name:18} {row.pid:>7} {row.parent:>7}  {ports}"
        yield "phases"
        for name, seconds in self.phases.items():
            yield f"                    {seconds:7.1f} s  {name}"
