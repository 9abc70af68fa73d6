"""A checked job whose first round was really computed, and what its auditors leave: bundles.

Two stages, two owners in each. One peer scales its gradient, one claims another sum, one leaves a
name out of a leaf. All of it is drawn; each auditor runs what providers run (`auditor.compared`),
on bytes that are in a dict.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.terms.beacons import Beacon
from contracts.terms.chunks import Chunk
from contracts.terms.errors import NotFound
from contracts.terms.history import Kept
from contracts.terms.ids import Digest, PeerId, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import MILLION, StepBeacon
from contracts.terms.work import Leaf, Output, RoundClosed, Sort, WorkClaim
from tests.numerics.pipeline import BLOBS, ITEMS, Line, Peer, spec_of
from tests.support.auditing import Enough, MemoryHost, stop
from tests.support.dockets import audit_spec
from tests.support.evidence_swarm import CLASS
from tests.support.history import JobMaker, Member, make_digest, make_members, outside_auditors
from training.averaging.sums import slice_of, vector_of
from training.data.loading import corpus_rows
from training.recipes import micro
from training.strategies.port import Compute, Shard, Strategy
from training.strategies.registry import strategy_of
from training.worker.engine import Engine
from verification.auditing.auditor import compared
from verification.auditing.outside import Followed, FollowedJob
from verification.auditing.program import Auditing
from verification.distances.thresholds import shipped_calibration
from verification.docket import begin_job

NAMES, OUTSIDE = ("ann", "bob", "cem", "dan"), ("out", "oda")
"""Of stages 0, 1, 0, 1."""
SCALES, MISSUMS, LACKS = "ann", "bob", "dan"
STAGES = 2


def make_job() -> "RealMaker":
    """The job, before its first round."""
    config = micro()
    spec = spec_of(1, config.model.num_layers, config=config, units_per_step=len(ITEMS), chunks=1)
    same = ("model", "optimizer", "data", "item_flops")
    changes: dict[str, Any] = {name: getattr(spec, name) for name in same}
    batch = ("layer_ends", "rows_per_unit", "units_per_step", "chunks", "steps")
    changes |= {name: getattr(spec.batch, name) for name in batch}
    table = shipped_calibration().digest()
    changes["audit"] = audit_spec(sums=MILLION, thresholds=table, deadline=8)
    return RealMaker(
        members=make_members(NAMES, stages=STAGES),
        spec_changes=changes,
        device_class=CLASS,
        outside=outside_auditors(OUTSIDE, device_class=CLASS),
        begin=begin_job,
    )


@dataclass
class RealMaker(JobMaker):
    """What its members say of round 1 is what they have computed, but for the liars."""

    given: dict[Digest, bytes] = field(default_factory=dict)
    """All bytes that claims and leaves name."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.line = Line(self.spec, peers_per_stage=2)
        for item in ITEMS:
            self.line.trip(item)
        source = self.line.source
        self.given |= {source.digest(name): data for name, data in source.given.items()}

    def named(self, name: str) -> Member:
        """Somebody of the job."""
        return self.members[NAMES.index(name)]

    def peer(self, member: Member) -> Peer:
        """Who computes for a member."""
        mates = [each for each in self.members if each.stage == member.stage]
        return self.line.peers[member.stage][mates.index(member)]

    def base(self, stage: StageIndex) -> Digest:
        """See `JobMaker.base`."""
        return self.line.firsts[stage].state.roots().state

    def claim(
        self, member: Member, items: Sequence[ItemNumber] | None = None, **changed: Any
    ) -> tuple[WorkClaim, tuple[Leaf, ...]]:
        """See `JobMaker.claim`."""
        numbers = self.items_of(member) if items is None else items
        draft = self.peer(member).strategy.commit(frozenset(numbers))
        outputs = tuple(self._bound(member, *piece) for piece in draft.shards)
        leaves = draft.leaves
        if member == self.named(LACKS):
            named = tuple(each for each in leaves[0].tensors if not each[0].startswith("rows/"))
            leaves = (leaves[0].model_copy(update={"tensors": named}), *leaves[1:])
        return super().claim(member, numbers, leaf_list=leaves, outputs=outputs, **changed)

    def _bound(self, member: Member, output: Output, data: bytes) -> Output:
        if member == self.named(SCALES):
            scaled = slice_of(vector_of(data) * 1.01)
            data, norm = scaled.data, scaled.norm_squared
            output = output.model_copy(update={"digest": scaled.digest, "norm_squared": norm})
        self.given[output.digest] = bytes(data)
        return output

    def bucket_claim(
        self, closed: RoundClosed, claims: Sequence[WorkClaim], chunk: Chunk, **changed: Any
    ) -> WorkClaim:
        """See `JobMaker.bucket_claim`."""
        stage, number = chunk
        own = sorted((each for each in claims if each.group == stage), key=lambda each: each.peer)
        weights = {each.digest(): (stage, closed.weights[each.digest()]) for each in own}
        parts = [self.given[each.outputs[number].digest] for each in own]
        strategy = self.line.firsts[stage].strategy
        output, _ = strategy.reduce(chunk, map(Shard, weights, parts), weights)
        if self.reducer(*chunk) == self.named(MISSUMS):
            output = output.model_copy(update={"digest": make_digest("another sum")})
        return super().bucket_claim(closed, claims, chunk, outputs=(output,), **changed)

    def play(self) -> None:
        """Round 1, and the seal by whose beacon all of it is drawn."""
        self.seal_step()
        self.seal([self.session.sign(self.beacon())])

    def beacon(self) -> StepBeacon:
        """Of round 1."""
        return StepBeacon(
            job=self.spec.job(),
            step=StepNumber(2),
            of=StepNumber(1),
            batch=make_digest("batch"),
            block=7,
            beacon=make_digest("beacon"),
        )

    async def beacon_of(self, step: StepNumber) -> Beacon:
        """See `Beacons.beacon_of`."""
        said = self.beacon()
        return Beacon(step, said.batch, said.block, said.beacon, self.seals[0].seal.digest())

    async def __call__(self, digest: Digest, sort: Sort, holders: Sequence[PeerId]) -> bytes:
        """See `ByteSource`."""
        if digest not in self.given:
            raise NotFound("it is nowhere", digest=digest.hex())
        return self.given[digest]

    async def items_after(self, after: int) -> AsyncIterator[Kept]:
        """See `following.Items`."""
        for item in self.items[after:]:
            yield item


@dataclass
class RealHost(MemoryHost):
    """Satisfies `Host` with real arithmetic."""

    job: RealMaker | None = None

    def strategy_for(self, compute: Compute) -> Strategy:
        """See `Host.strategy_for`."""
        return strategy_of(self.record.spec, BLOBS, compute)

    def rows(self, name: str) -> bytes:
        """See `Host.rows`."""
        return corpus_rows(self.record.spec, BLOBS).read(name)

    async def weights(self, claim: WorkClaim) -> Path:
        """See `Host.weights`: those of the job's beginning."""
        assert self.job is not None
        state, file = self.job.line.firsts[claim.group].state, self.folder / "own.weights"
        state.save_weights(file, state.roots())
        return file


async def audit_all(
    job: RealMaker, folder: Path, names: Iterable[str], kind: type[RealHost] = RealHost
) -> list[RealHost]:
    """Everybody audits what it was asked for."""
    hosts, engine = [], Engine()
    followed_job = FollowedJob(job.spec.job(), job.domain, begin_job, job.items_after, job)
    for name in names:
        followed, session = Followed(followed_job), job.named(name).session
        host = kind(followed, session, folder / name, engine, [job], job=job)
        host.folder.mkdir(parents=True)
        await followed.look(host.tell)
        with pytest.raises(Enough):
            await Auditing(compared, stop).run(host)
        hosts.append(host)
    await engine.close()
    return hosts


def played(folder: Path) -> tuple[RealMaker, list[RealHost]]:
    """The job, and its members after their audits, each of which left a bundle."""
    torch.set_num_threads(1)
    job = make_job()
    job.play()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("verification.auditing.program.is_evidence", lambda _case, _findings: True)
        hosts = asyncio.run(audit_all(job, folder, NAMES))
    return job, hosts
