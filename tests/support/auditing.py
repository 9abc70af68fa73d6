"""An auditor's host in memory: a made-up job that is followed, made-up bytes, reports in a list."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contracts.governance.record import JobRecord
from contracts.governance.sealed import SealedClaim
from contracts.keys.wallet import Session
from contracts.terms.beacons import Beacon
from contracts.terms.errors import NotFound
from contracts.terms.history import Kept
from contracts.terms.ids import Digest, PeerId, StepNumber
from contracts.terms.messages import Message
from contracts.terms.signatures import Signed
from contracts.terms.work import Leaf, Sort, WorkClaim
from tests.support.checked_history import CheckedMaker
from tests.support.dockets import begin_checked, distances_of
from training.changes import Changes
from training.strategies.port import Compute, Strategy
from training.worker.engine import Engine
from training.worker.ports import HONEST, Behaviour
from training.worker.sealed import SealedWork
from verification.auditing.host import ByteSource
from verification.auditing.outside import Followed, FollowedJob
from verification.auditing.replays import Found, Source
from verification.distances.thresholds import MEASURES, distance_name
from verification.verdicts import kinds_of


@dataclass(frozen=True)
class Anchored:
    """Satisfies `Beacons` by the chain of a made-up job."""

    maker: CheckedMaker

    async def beacon_of(self, step: StepNumber) -> Beacon | None:
        """See `Beacons.beacon_of`."""
        chain = self.maker.market.anchor_chain
        if step > len(chain):
            return None
        batch, ((_, _, seal),) = chain[step - 1]
        assert batch.beacon is not None
        return Beacon(step, batch.root, batch.block, batch.beacon, seal)


def followed_job(maker: CheckedMaker) -> FollowedJob:
    """How the history of a made-up job is read, as far as it goes by then."""

    async def items(after: int) -> AsyncIterator[Kept]:
        for item in maker.items[after:]:
            yield item

    return FollowedJob(maker.spec.job(), maker.domain, begin_checked, items, Anchored(maker))


class MadeBytes:
    """Satisfies `ByteSource`: everything is here, but for what is said to be missing."""

    def __init__(self, error: Exception | None = None, missing: Sequence[Digest] = ()) -> None:
        self.error, self.missing = error or NotFound("it is nowhere"), set(missing)
        self.asked: list[tuple[Digest, Sort, tuple[PeerId, ...]]] = []

    async def __call__(self, digest: Digest, sort: Sort, holders: Sequence[PeerId]) -> bytes:
        """See `ByteSource`."""
        self.asked.append((digest, sort, tuple(holders)))
        if digest in self.missing:
            raise self.error
        return b"bytes of " + digest


class Enough(Exception):
    """What ends an auditor in a test: it would wait."""


async def stop(_seconds: float) -> None:
    """Satisfies `Pause`."""
    raise Enough


class NoMore(Changes):
    """No seal comes any more."""

    async def beyond(self, version: int) -> None:
        """See `Changes.beyond`."""
        raise Enough


@dataclass
class MemoryHost:
    """Satisfies `Host`; `refusal` is what the coordinator says to a report."""

    followed: Followed
    session: Session
    folder: Path
    engine: Engine
    sources: Sequence[ByteSource] = field(default_factory=lambda: [MadeBytes()])
    behaviour: Behaviour = HONEST
    refusal: Exception | None = None
    changes: Changes = field(default_factory=NoMore)
    told: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    taken: list[tuple[Signed[WorkClaim], Leaf]] = field(default_factory=list)
    strategy: Strategy | None = None

    @property
    def record(self) -> JobRecord:
        """See `Host.record`."""
        return self.followed.record

    @property
    def parties(self) -> Sequence[Signed[Message]]:
        """See `Host.parties`."""
        return self.followed.parties

    @property
    def work(self) -> SealedWork:
        """See `Host.work`."""
        return self.followed.work

    def tell(self, event: str, **fields: Any) -> None:
        """See `Host.tell`."""
        self.told.append((event, fields))

    def strategy_for(self, compute: Compute) -> Strategy:
        """See `Host.strategy_for`."""
        assert self.strategy is not None, "a made-up job was computed"
        return self.strategy

    def rows(self, name: str) -> bytes:
        """See `Host.rows`."""
        return name.encode()

    async def weights(self, claim: WorkClaim) -> Path:
        """See `Host.weights`."""
        return self.folder / "no.weights"

    async def reach_coordinator(self) -> None:
        """See `Host.reach_coordinator`."""

    async def hand_in(self, report: Signed[WorkClaim], leaf: Leaf) -> None:
        """See `Host.hand_in`."""
        if self.refusal is not None:
            raise self.refusal
        self.taken.append((report, leaf))


@dataclass
class Stated:
    """Satisfies `Comparing` by what it is told of each claim: it fetches, and computes nothing."""

    errors: Mapping[Digest, Exception] = field(default_factory=dict)  # by claim of work
    looked: list[Digest] = field(default_factory=list)

    async def __call__(self, source: Source, sealed: SealedClaim, seed: bytes) -> Found:
        """See `Comparing`."""
        name, spec = sealed.claim.digest(), source.spec
        self.looked.append(name)
        if name in self.errors:
            raise self.errors[name]
        for output in sealed.claim.outputs:
            await source.get(output.digest, "part")
        group = sealed.claim.group
        values = distances_of(group, spec, "match")
        kinds = kinds_of(spec, group)
        names = sorted(distance_name(kind, measure) for kind in kinds for measure in MEASURES)
        return Found(dict(zip(names, values, strict=True)), (1_000_000, -7))
