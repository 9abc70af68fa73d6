"""A checked swarm in one event loop: beacons at once, and audits that compare bytes.

`CountingCompute` has no tensor kinds, so an audit of it says of every kind that it matches, or of
every kind that it does not.
"""

from dataclasses import dataclass

from contracts.terms.beacons import Beacon
from contracts.terms.digest import wire_bytes
from contracts.terms.ids import StepNumber
from contracts.terms.messages import AuditReport
from tests.support.dockets import distances_of
from tests.support.history import make_digest
from verification.auditing.job import AuditedJob
from verification.auditing.loop import (
    compared_with_report,
    make_report,
    report_on_sum,
    seed_for,
    verdict_on,
)
from verification.draws.cases import Case


@dataclass
class MadeUpBeacons:
    """Every sealed step has its beacon at once, alike for everybody; nobody sees what it is of."""

    async def beacon_of(self, step: StepNumber) -> Beacon | None:
        """See `Beacons.beacon_of`."""
        return Beacon(
            step, make_digest("batch", step), step, make_digest(f"beacon {step}"), seal=None
        )


async def report_by_bytes(audited: AuditedJob, case: Case) -> AuditReport:
    """Replay and compare every byte that was bound."""
    if case.is_of_sum:
        return await report_on_sum(audited, case)
    sealed, spec = audited.commit(case.work), audited.record.spec
    commit, last = sealed.commit, spec.batch.stages - 1
    same, projections = True, list[int]()
    replays, seed = audited.replays_in(case.stage), seed_for(case, audited.peer)
    async with replays.begin(commit.step, audited.state_of(commit), seed) as replay:
        for leaf in sealed.leaves:
            x, dy = None, None
            near, far = (commit.stage - 1, commit.stage), (commit.stage, commit.stage + 1)
            if commit.stage > 0:
                x = wire_bytes(await audited.tensor(commit.step, near, leaf.unit, leaf.x))
            if commit.stage < last:
                dy = wire_bytes(await audited.tensor(commit.step, far, leaf.unit, leaf.dy))
            done = await replay.unit(leaf.unit, x, dy)
            same &= done.is_finite
            is_other = leaf.unit in sealed.taken_over
            same &= is_other or done.y is None or done.y.digest == leaf.y
            same &= is_other or done.dx is None or done.dx.digest == leaf.dx
            same &= done.loss == leaf.loss
            projections.append(done.projection)
        if same:
            parts = await replay.gradient()
            same = [part.digest for part in parts] == [part.digest for part in commit.parts]
    own = distances_of(case.stage, spec, "match" if same else "mismatch")
    found = compared_with_report(audited, case, own, tuple(projections))
    verdict = verdict_on(audited, case, found)
    return make_report(audited, case, verdict, found, tuple(projections))
