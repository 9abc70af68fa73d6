"""A checked swarm in one event loop: beacons at once, and audits that compare bytes.

`CountingCompute` has no tensor kinds, so an audit of it says of every kind that it matches, or of
every kind that it does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import Buffer

from contracts.terms.auditors import AuditorList
from contracts.terms.beacons import Beacon
from contracts.terms.digest import wire_bytes
from contracts.terms.ids import StepNumber
from contracts.terms.messages import JobSpec
from contracts.terms.work import Leaf, leaf_names
from tests.support.dockets import calibration, distances_of
from tests.support.fakes.counting import CountingCompute
from tests.support.history import make_digest
from training.averaging.slices import Slice
from training.worker.ports import ReplayedUnit
from training.worker.sealed import SealedClaim
from verification import docket
from verification.auditing.replays import Found, Source
from verification.distances.thresholds import MEASURES, distance_name
from verification.verdicts import kinds_of


def begin_checked(spec: JobSpec, outside: AuditorList) -> docket.Docket:
    """The docket of a job that names the table of `dockets.calibration`."""
    return docket.begin(spec, outside, calibration())


@dataclass
class MadeUpBeacons:
    """Every sealed step has its beacon at once, alike for everybody; nobody sees what it is of."""

    async def beacon_of(self, step: StepNumber) -> Beacon | None:
        """See `Beacons.beacon_of`."""
        return Beacon(
            step, make_digest("batch", step), step, make_digest(f"beacon {step}"), seal=None
        )


class ByBytes:
    """Satisfies `program.Repeating`: compares every byte that was bound."""

    async def work(self, source: Source, sealed: SealedClaim, seed: bytes) -> Found:
        """See `Repeating.work`."""
        claim, spec = sealed.claim, source.spec
        same, projections = True, list[int]()
        async with source.replay(claim, seed) as replay:
            for leaf in sealed.leaves:
                names = leaf_names(claim.group, spec.batch.stages, leaf.item)
                x, dy = [
                    wire_bytes(await source.get(leaf.tensor(name), "boundary")) if name else None
                    for name in (names.x, names.dy)
                ]
                done = await replay.item(leaf.item, x, dy)
                same &= done.is_finite and _is_as_claimed(leaf, names.y, names.dx, done)
                projections.append(done.projection)
            if same:
                parts = [part.digest for part in await replay.gradient()]
                same = parts == [output.digest for output in claim.outputs]
        values = distances_of(claim.group, spec, "match" if same else "mismatch")
        kinds = kinds_of(spec, claim.group)
        found = sorted(distance_name(kind, measure) for kind in kinds for measure in MEASURES)
        return Found(dict(zip(found, values, strict=True)), tuple(projections))

    def mean(
        self, spec: JobSpec, parts: Sequence[Buffer], weights: Sequence[int], totals: Sequence[int]
    ) -> Slice:
        """See `Repeating.mean`."""
        return CountingCompute(spec.batch.chunks).mean(parts, weights, totals)


def _is_as_claimed(leaf: Leaf, y: str, dx: str, done: ReplayedUnit) -> bool:
    made = ((y, done.y), (dx, done.dx))
    same = all(own is None or own.digest == leaf.tensor(name) for name, own in made)
    return (leaf.given or same) and done.loss == next(iter(leaf.numbers), None)
