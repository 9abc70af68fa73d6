"""Which verdict follows from the distances of a report. Pure.

A verdict that does not follow counts for nothing, so everybody who holds the job's calibration
table computes it: the auditor before it reports, every docket, and who runs a bundle again.
A report states distances without their names: they are those of `limits_of`, ascending. Distances
in 1e-9. Source: docs/protocol.md 5.
"""

from collections.abc import Iterable, Mapping, Sequence

from contracts.terms.digest import digest
from contracts.terms.errors import Malformed
from contracts.terms.ids import ZERO_DIGEST, PeerId, StageIndex
from contracts.terms.messages import JobSpec
from contracts.terms.work import Leaf, Verdict, leaf_names
from verification.distances.thresholds import (
    MEASURES,
    SATURATED,
    Recipe,
    decide,
    distance_name,
    projected_of,
    projections_allowed,
    stage_kinds,
)
from verification.draws.cases import Case
from verification.draws.selection import Rules

PROJECTIONS = "projections"
"""The distance of a repeated report's projections from those of who repeats it, 1e-9 of a norm."""


def limits_of(
    rules: Rules, case: Case, auditor: PeerId, classes: Mapping[PeerId, str]
) -> dict[str, int]:
    """The most that each distance of a report on `case` may be in a match.

    Projections of a repeated report are held against gradients as no codec has rounded them, which
    lie apart by no more than the farthest of their parameters, or than their traces say.

    Raises:
        Refused: the table does not hold these device classes.
    """
    spec, own = rules.spec, classes[auditor]
    kinds = kinds_of(spec, case.stage)
    limits = rules.table.thresholds(recipe_of(spec), kinds, own, classes[case.worker])
    if case.kind != "report":
        return limits
    kinds = projected_of(kinds)
    exact = rules.table.thresholds(Recipe(), kinds, own, classes[case.doer])
    farthest = max(exact[distance_name(kind, MEASURES[0])] for kind in kinds)
    return {**limits, PROJECTIONS: projections_allowed(farthest)}


def recipe_of(spec: JobSpec) -> Recipe:
    """What rounds the numbers of this job, and what its peers exchange."""
    rules, exchanged = spec.rules, spec.batch.exchanged
    return Recipe(rules.boundary_codec, rules.mean_codec, exchanged=exchanged)


def kinds_of(spec: JobSpec, stage: StageIndex) -> tuple[str, ...]:
    """The tensor kinds that an audit of a stage of this job compares."""
    return stage_kinds(
        is_first=stage == 0,
        is_last=stage == spec.batch.stages - 1,
        tied_head=spec.model.tied_head,
        has_adapter=spec.model.adapter is not None,
        exchanged=recipe_of(spec).exchanged,
    )


def verdict_of(case: Case, distances: Sequence[int], limits: Mapping[str, int]) -> Verdict:
    """What follows from the distances of a report on `case`.

    Who repeats a report agrees with it if the work is what it said, and if it knows the numbers
    that only a replay shows.

    Args:
        case: What the report is about.
        distances: In the ascending order of the names of `limits`.
        limits: Of `limits_of`.

    Raises:
        Malformed: another number of distances.
    """
    if len(distances) != len(limits):
        raise Malformed(f"{len(distances)} distances, compared are {len(limits)}")
    named = dict(zip(sorted(limits), distances, strict=True))
    if case.kind != "report":
        return decide(tuple(named.items()), limits)
    work = {name: most for name, most in limits.items() if name != PROJECTIONS}
    found = decide([(name, named[name]) for name in work], work)
    is_known = named[PROJECTIONS] <= limits[PROJECTIONS]
    return "match" if found == case.said and is_known else "mismatch"


def verdict_on_sum(case: Case, *, is_same: bool) -> Verdict:
    """What follows from whether the parts come to the bytes that a bucket's claim names.

    Who repeats a report agrees with it if the bucket is what it said.
    """
    found: Verdict = "match" if is_same else "mismatch"
    return "match" if found == (case.said or "match") else "mismatch"


def is_complete(spec: JobSpec, stage: StageIndex, leaves: Iterable[Leaf]) -> bool:
    """Whether each leaf of a claim names all that its stage takes and makes, and tells of its loss.

    What does not is as far off as can be, without a replay: no honest peer leaves anything out.
    """
    last = spec.batch.stages - 1
    return all(
        all(
            leaf.tensor(name) != ZERO_DIGEST
            for name in leaf_names(stage, spec.batch.stages, leaf.item).all
        )
        and len(leaf.numbers) == (spec.batch.numbers_of_leaf if stage == last else 0)
        for leaf in leaves
    )


def seed_for(case: Case, auditor: PeerId) -> bytes:
    """What `auditor` seeds the projections of a replay by: known to nobody before the beacon.

    A repeat takes the seed of the report that it repeats: only so are their projections comparable.
    """
    beacon, by = (case.seeded_by, case.doer) if case.kind == "report" else (case.beacon, auditor)
    assert beacon is not None  # it was drawn, and a report on it with a beacon
    return digest("projections", beacon + by)


def apart(stated: Sequence[int], replayed: Sequence[int]) -> int:
    """How far projections (1e-6) lie apart, in 1e-9; other numbers of items are no comparison."""
    if len(stated) != len(replayed):
        return SATURATED
    pairs = zip(stated, replayed, strict=True)
    return min(SATURATED, 1000 * max((abs(one - other) for one, other in pairs), default=0))
