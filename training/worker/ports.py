"""What a worker needs to compute with, beside `Strategy`, and where it could lie."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from contracts.terms.ids import Digest, StepNumber
from contracts.terms.work import Findings, WorkClaim
from training.strategies.port import Bucket, Compute, RoundNumber, Strategy

MakeStrategy: TypeAlias = Callable[[Compute], Strategy]
"""Makes a job's strategy, which computes by what it is given; may take seconds."""


@dataclass(frozen=True)
class Arithmetic:
    """What a worker computes with."""

    strategy_for: MakeStrategy
    rows: Callable[[str], bytes]
    """Rows of the corpus by the name that a leaf gives them (`UnitRows.read`); may take seconds."""
    elements: Mapping[Bucket, int] | None = None
    """Of each bucket; None: those of the JobSpec's model."""


# --------------------------------------------------------------------------------------- behaviour

Moment: TypeAlias = Literal["closed", "sealed"]
"""We are asked to claim; a seal is in our state."""

Departure: TypeAlias = Literal["stay", "leave", "vanish"]
"""Leave: in order, after what is open. Vanish: at once, without a word, for good."""


@dataclass(frozen=True)
class Wanted:
    """Something that somebody asks us for."""

    kind: Literal["bytes", "weights"]
    digest: Digest  # zero for weights
    is_sealed: bool  # its round is: only audits and returning members ask for it now
    at: StepNumber  # that we work on


class Behaviour:
    """Where a peer could lie. Each hook answers what honest code would, unless it is overridden.

    The adversaries of `tallystick.gym` play the code of real workers through this alone: what is
    signed, stored and sent around these answers is what an honest peer signs, stores and sends.
    """

    def arithmetic(self, make: MakeStrategy, compute: Compute) -> Strategy:
        """What items, claims and means are computed with, for the life of a lease."""
        return make(compute)

    async def serves(self, wanted: Wanted) -> bool:
        """Whether who asks for something that may be here gets it; it waits until we say."""
        return True

    def departure(self, round: RoundNumber, moment: Moment) -> Departure:
        """Whether we go now: `round` is the one that was closed, or sealed."""
        return "stay"

    async def report(
        self, about: WorkClaim, agreeing: Findings, replay: Callable[[], Awaitable[Findings]]
    ) -> Findings:
        """What we say of a claim as its auditor.

        Args:
            about: What we audit.
            agreeing: That there is no difference; nothing was computed for it.
            replay: Finds what is so.
        """
        return await replay()


HONEST = Behaviour()
