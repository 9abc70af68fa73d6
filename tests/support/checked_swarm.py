"""A checked swarm in one event loop: beacons at once, and audits that compare bytes.

The counting strategy has no tensor kinds, so an audit of it says of every kind that it matches, or
of every kind that it does not.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contracts.governance.sealed import SealedClaim
from contracts.terms.beacons import Beacon
from contracts.terms.ids import StepNumber
from tests.support.dockets import distances_of
from tests.support.history import make_digest
from verification.auditing.replays import Found, Source
from verification.distances.thresholds import MEASURES, distance_name
from verification.verdicts import kinds_of


@dataclass
class MadeUpBeacons:
    """Every sealed step has its beacon at once, alike for everybody; nobody sees what it is of."""

    async def beacon_of(self, step: StepNumber) -> Beacon | None:
        """See `Beacons.beacon_of`."""
        return Beacon(
            step, make_digest("batch", step), step, make_digest(f"beacon {step}"), seal=None
        )


class _Bytes:
    """Satisfies `port.Comparison`: whether all that was claimed is what came out."""

    def __init__(self) -> None:
        self.are_same = True

    def add(self, kind: str, claimed: Any, replayed: Any) -> None:
        """See `Comparison.add`."""
        self.are_same &= claimed == replayed

    def add_gradient(self, claimed: Mapping[str, Any], replayed: Mapping[str, Any]) -> None:
        """See `Comparison.add_gradient`."""
        self.are_same &= claimed == replayed


async def by_bytes(source: Source, sealed: SealedClaim, seed: bytes) -> Found:
    """Satisfies `program.Comparing`: compares every byte that was bound."""
    group, spec, comparison = sealed.claim.group, source.spec, _Bytes()
    replayed = await source.replay(sealed, seed, comparison)
    is_same = replayed.is_computable and comparison.are_same
    values = distances_of(group, spec, "match" if is_same else "mismatch")
    kinds = kinds_of(spec, group)
    names = sorted(distance_name(kind, measure) for kind in kinds for measure in MEASURES)
    return Found(dict(zip(names, values, strict=True)), replayed.projections)
