"""How does a peer without web3 come to beacons that the chain said?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from contracts.chain.blocks import Block
from contracts.chain.connection import ChainConnection
from contracts.chain.wrappers.seals import AnchorChain, Seals
from contracts.governance.anchor_chain import AnchoredBatch, fold_anchor_chain
from contracts.terms.beacons import Beacon
from contracts.terms.errors import AuditMismatch, BadSignature, ChainForgot, Unavailable
from contracts.terms.ids import ZERO_DIGEST, Address, Digest, JobId, SessionKey, StepNumber
from contracts.terms.merkle import batch_root
from contracts.terms.messages import JobOpening
from contracts.terms.moments import UnixSeconds
from market.bodies.jobs import JobView
from tallystick.provider.beacons import (
    UNSERVED_BLOCKS,
    BeaconFile,
    BeaconWatch,
    Counts,
    checked_opening,
)
from tallystick.sdk.client import MarketClient
from tests.support.dockets import audit_spec
from tests.support.history import DOMAIN, JobMaker, make_wallet
from verification.draws.anchor_chains import (
    MAY_HOLD,
    AnchorChainPage,
    Entry,
    ShownBatch,
    show_batch,
)

JOB, ANCHORER = JobId(b"j" * 32), Address(b"a" * 20)
OPENING = JobOpening(
    job=JOB, job_spec=ZERO_DIGEST, session_key=SessionKey(bytes(32)),
    anchorer=ANCHORER, opening_block=1,
    outside_auditors=ZERO_DIGEST,
)  # fmt: skip


def beacon(step: int, block: int = 5) -> Beacon:
    value, seal = Digest(bytes([step]) * 32), Digest(b"s" * 32)
    return Beacon(StepNumber(step), Digest(b"r" * 32), block, value, seal)


async def test_beacon_file__appended_by_one__is_read_by_another_as_it_grows(tmp_path: Path) -> None:
    agent, peer = BeaconFile(tmp_path), BeaconFile(tmp_path)

    before = await peer.beacon_of(StepNumber(1))
    agent.append((beacon(1), beacon(3)))
    first = await peer.beacon_of(StepNumber(3))
    agent.append((beacon(3), beacon(2)))

    assert before is None and first == beacon(3)
    assert await peer.beacon_of(StepNumber(2)) == beacon(2)
    assert (tmp_path / "beacons.v2").read_bytes() == b"".join(
        beacon(n).encoded() for n in (1, 3, 2)
    )
    assert (tmp_path / "beacons.v2").stat().st_mode & 0o777 == 0o600


async def test_beacon_file__killed_while_it_wrote__goes_on_after_the_last_whole_beacon(
    tmp_path: Path,
) -> None:
    BeaconFile(tmp_path).append((beacon(1),))
    with (tmp_path / "beacons.v2").open("ab") as file:
        file.write(beacon(2).encoded()[:50])
    torn = await BeaconFile(tmp_path).beacon_of(StepNumber(2))

    BeaconFile(tmp_path).append((beacon(2),))

    assert torn is None
    assert await BeaconFile(tmp_path).beacon_of(StepNumber(2)) == beacon(2)


def test_beacon_file__another_beacon_of_a_step__is_refused(tmp_path: Path) -> None:
    BeaconFile(tmp_path).append((beacon(1),))

    with pytest.raises(ChainForgot):
        BeaconFile(tmp_path).append((beacon(1, block=6),))


@dataclass
class Market:
    """What a market shows of an anchor chain, when it answers."""

    entries: list[tuple[Entry, ...]]
    batches: list[AnchoredBatch]
    served: int = 0  # batches that it knows
    answers: bool = True

    async def anchor_chain(self, job: JobId, *, first: int | None = None) -> AnchorChainPage:
        """See `MarketClient.anchor_chain`."""
        if not self.answers:
            raise Unavailable("the market does not answer")
        start = first or 0
        shown = tuple(
            ShownBatch(self.batches[n], show_batch(self.entries[n]))
            for n in range(start, self.served)
        )
        before = fold_anchor_chain(self.batches[:start]) if start else ZERO_DIGEST
        return AnchorChainPage(start, before, shown)


class Everything:
    """Chain, SealAnchor and market of one job; what happens is scripted by the test."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.number, self.now, self.fork = folder, 1, 1000.0, 0
        self.entries, self.anchored = list[tuple[Entry, ...]](), list[AnchoredBatch]()
        self.market = Market(self.entries, self.anchored)

    def anchor(self, *steps: int) -> None:
        """Anchor seals in a new block, with the beacon of the batch before."""
        self.record()
        self.number += 1
        entries = tuple((JOB, step, Digest(bytes([step]) * 32)) for step in steps)
        self.entries.append(entries)
        self.anchored.append(AnchoredBatch(batch_root(entries), self.number, None))

    def anchor_with_beacon(self, *steps: int) -> None:
        """Anchor seals, and record their beacon in the block after."""
        self.anchor(*steps)
        self.record()

    def record(self) -> None:
        """Record the newest beacon, in a new block."""
        self.number += 1
        if self.anchored:
            newest = self.anchored[-1]
            self.anchored[-1] = replace(newest, beacon=self._hash(newest.block))

    def _hash(self, number: int) -> Digest:
        return Digest(bytes([self.fork, number % 256]) * 16)

    async def head(self, *, confirmations: int = 0) -> Block:
        """See `ChainConnection.head`."""
        return await self.block(self.number - confirmations)

    async def block(self, number: int) -> Block:
        """See `ChainConnection.block`; a block a second."""
        if number > self.number:
            raise ChainForgot("no such block")
        return Block(number, self._hash(number), UnixSeconds(1000 + number))

    async def anchor_chain(self, anchorer: Address, at: Block) -> AnchorChain:
        """See `Seals.anchor_chain`."""
        assert anchorer == ANCHORER
        return AnchorChain(fold_anchor_chain(self.anchored), len(self.anchored))

    async def pending_block(self, anchorer: Address, at: Block) -> int:
        """See `Seals.pending_block`."""
        newest = self.anchored[-1] if self.anchored else None
        return newest.block if newest and newest.beacon is None else 0

    async def batches(self, anchorer: Address, at: Block) -> Sequence[AnchoredBatch]:
        """See `Batches`."""
        return self.anchored

    def watch(self, *, confirmations: int = 1, settling: float = 0.0) -> BeaconWatch:
        """A watch over all of it."""
        return BeaconWatch(
            OPENING,
            BeaconFile(self.folder),
            seals=cast(Seals, self),
            batches=self.batches,
            blocks=cast(ChainConnection, self),
            market=cast(MarketClient, self.market),
            counts=Counts(confirmations, settling),
            clock=lambda: self.now,
        )

    async def kept(self, step: int) -> Beacon | None:
        """What a peer reads of a step."""
        return await BeaconFile(self.folder).beacon_of(StepNumber(step))

    def beacon(self, step: int, batch: int) -> Beacon:
        """The beacon of a step that stands in a batch."""
        found = self.anchored[batch]
        assert found.beacon is not None
        (seal,) = (seal for _, of, seal in self.entries[batch] if of == step)
        return Beacon(StepNumber(step), found.root, found.block, found.beacon, seal)


@pytest.fixture
def world(tmp_path: Path) -> Everything:
    return Everything(tmp_path)


async def test_look__market_behind_the_chain__waits_and_then_has_the_beacon_on_disk(
    world: Everything,
) -> None:
    world.anchor_with_beacon(1)
    watch = world.watch()

    behind = await watch.look()
    world.market.served = 1
    found = await watch.look()
    again = await watch.look()

    assert behind == again == ()
    assert found == (world.beacon(1, 0),)
    assert await world.kept(1) == found[0]


async def test_look__beacon_not_recorded__comes_with_the_next_batch(world: Everything) -> None:
    watch = world.watch()
    world.anchor(1)
    world.market.served = 1

    pending = await watch.look()
    world.anchor(2, 3)
    world.market.served = 2
    first = await watch.look()
    world.record()

    assert pending == () and first == (world.beacon(1, 0),)
    assert await watch.look() == (world.beacon(2, 1), world.beacon(3, 1))


async def test_look__block_without_confirmations_or_too_young__waits(world: Everything) -> None:
    watch = world.watch(confirmations=3, settling=4.0)
    world.anchor_with_beacon(1)
    world.market.served, world.now = 1, 1100.0

    unconfirmed = await watch.look()
    world.number += 2
    world.now = 1000.0 + world.number
    young = await watch.look()
    world.now += 3

    assert unconfirmed == young == ()
    assert await watch.look() == (world.beacon(1, 0),)


async def test_look__chain_went_back__believes_the_new_blocks(world: Everything) -> None:
    watch = world.watch(settling=60.0)
    world.anchor_with_beacon(1)
    world.market.served = 1
    young = await watch.look()

    world.fork, world.number = 1, 1
    world.entries.clear()
    world.anchored.clear()
    world.anchor_with_beacon(1)
    replaced = await watch.look()
    world.now += 120

    assert young == replaced == ()
    assert await watch.look() == (world.beacon(1, 0),)


async def test_look__market_lies_about_a_beacon__nothing_counts_until_it_stops(
    world: Everything,
) -> None:
    world.anchor_with_beacon(1)
    watch, world.market.served = world.watch(), 1
    world.market.batches = [replace(world.anchored[0], block=3, beacon=Digest(b"x" * 32))]

    with pytest.raises(AuditMismatch):
        await watch.look()
    stored = await world.kept(1)
    world.market.batches = world.anchored

    assert stored is None
    assert await watch.look() == (world.beacon(1, 0),)


async def test_look__market_never_serves_a_batch__all_is_drawn_of_what_it_may_hold(
    world: Everything,
) -> None:
    world.anchor_with_beacon(1)
    watch = world.watch()
    first = await watch.look()
    world.number += UNSERVED_BLOCKS - 1
    patient = await watch.look()
    world.number += 1
    found = await watch.look()
    world.market.served = 1  # too late: it was said
    again = await watch.look()

    unserved = replace(world.beacon(1, 0), batch=ZERO_DIGEST, seal=None)
    assert first == patient == again == ()
    assert found == tuple(
        replace(unserved, step=StepNumber(step)) for step in range(1, MAY_HOLD + 1)
    )
    assert await world.kept(1) == unserved


async def test_look__market_does_not_answer__waits_as_long_and_then_gives_the_batch_up(
    world: Everything,
) -> None:
    world.anchor_with_beacon(1)
    watch, world.market.answers = world.watch(), False

    with pytest.raises(Unavailable):
        await watch.look()
    world.number += UNSERVED_BLOCKS

    assert (await watch.look())[0].batch == ZERO_DIGEST


# ------------------------------------------------------------------- whose anchor chain is followed


def view_of(maker: JobMaker, *, by: str = "coordinator", poster: str = "poster") -> JobView:
    """What a market shows of a job; of a view only these fields are read."""
    spec = make_wallet(poster).sign(maker.spec, DOMAIN).encoded()
    opening = make_wallet(by).sign(maker.opening, DOMAIN).encoded()
    return cast(JobView, SimpleNamespace(signed=spec, opening=opening))


def test_checked_opening__signed_one__is_it_if_the_job_is_checked() -> None:
    checked, other = JobMaker(spec_changes={"audit": audit_spec()}), JobMaker()

    assert checked_opening(view_of(checked), checked.spec.job(), DOMAIN) == checked.opening
    assert checked_opening(view_of(other), other.spec.job(), DOMAIN) is None


@pytest.mark.parametrize(
    ("by", "poster", "job"),
    [("mallory", "poster", None), ("coordinator", "mallory", None), ("coordinator", "poster", JOB)],
    ids=["opening forged", "spec forged", "another job"],
)
def test_checked_opening__what_nobody_signed_or_asked_for__is_refused(
    by: str, poster: str, job: JobId | None
) -> None:
    maker = JobMaker(spec_changes={"audit": audit_spec()})

    with pytest.raises(BadSignature):
        checked_opening(view_of(maker, by=by, poster=poster), job or maker.spec.job(), DOMAIN)
