"""Which verdict follows from the distances of a report. Pure.

A verdict that does not follow counts for nothing, so everybody who holds the job's calibration
table computes it: the auditor before it reports, every docket, and who runs a bundle again.
Distances in 1e-9. Source: docs/protocol.md 5.
"""

from collections.abc import Mapping, Sequence

from contracts.terms.errors import Malformed
from contracts.terms.ids import PeerId, StageIndex
from contracts.terms.messages import JobSpec, Verdict
from verification.distances.thresholds import (
    MEASURES,
    Recipe,
    decide,
    distance_name,
    gradients_of,
    projections_allowed,
    stage_kinds,
)
from verification.draws.cases import Case
from verification.draws.selection import Rules

PROJECTIONS = "projections"
"""The distance of a repeated report's projections from those of who repeats it, 1e-9 of a norm."""


def thresholds_of(
    rules: Rules, stage: StageIndex, own_class: str, claimed_class: str
) -> dict[str, int]:
    """The most that honest distances of a stage may be; raises as `Calibration.thresholds`."""
    spec = rules.spec
    recipe = Recipe(spec.rules.boundary_codec, spec.rules.gradient_codec)
    return rules.table.thresholds(recipe, kinds_of(spec, stage), own_class, claimed_class)


def limits_of(
    rules: Rules, case: Case, auditor: PeerId, classes: Mapping[PeerId, str]
) -> dict[str, int]:
    """The most that each distance of a report on `case` may be in a match.

    Projections of a repeated report are held against gradients as no codec has rounded them, which
    lie apart by no more than the farthest of their parameters.

    Raises:
        Refused: the table does not hold these device classes.
    """
    own = classes[auditor]
    limits = thresholds_of(rules, case.stage, own, classes[case.worker])
    if case.kind != "report":
        return limits
    kinds = gradients_of(kinds_of(rules.spec, case.stage))
    exact = rules.table.thresholds(Recipe(), kinds, own, classes[case.doer])
    farthest = max(exact[distance_name(kind, MEASURES[0])] for kind in kinds)
    return {**limits, PROJECTIONS: projections_allowed(farthest)}


def kinds_of(spec: JobSpec, stage: StageIndex) -> tuple[str, ...]:
    """The tensor kinds that an audit of a stage of this job compares."""
    is_last = stage == spec.batch.stages - 1
    return stage_kinds(is_first=stage == 0, is_last=is_last, tied_head=spec.model.tied_head)


def verdict_of(
    case: Case, distances: Sequence[tuple[str, int]], limits: Mapping[str, int]
) -> Verdict:
    """What follows from the distances of a report on `case`.

    Who repeats a report agrees with it if the work is what it said, and if it knows the numbers
    that only a replay shows.

    Raises:
        Malformed: a distance is missing, unknown or stated twice.
    """
    if case.kind != "report":
        return decide(distances, limits)
    work = {name: most for name, most in limits.items() if name != PROJECTIONS}
    found = decide([each for each in distances if each[0] != PROJECTIONS], work)
    own = [value for name, value in distances if name == PROJECTIONS]
    if len(own) != 1:
        raise Malformed("a repeat says once how far the projections lie apart")
    return "match" if found == case.said and own[0] <= limits[PROJECTIONS] else "mismatch"
