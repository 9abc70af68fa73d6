"""A job that its losses on validation rows end: sealed, paid, and the same whoever died."""

from pathlib import Path
from typing import Any

import pytest

from contracts.terms.messages import MILLION, StopEarlySpec, Validation
from tests.support.dockets import audit_spec
from tests.support.plain_swarm import plain_run
from tests.support.swarm_job import COORDINATOR, MemorySwarm, make_papers

NEVER_BETTER = StopEarlySpec(patience=2, min_delta=10**15)
"""The first loss is the best; two more end the job: after steps 2, 4 and 6."""


def swarm_of(folder: Path, *workers: str, **changed: Any) -> MemorySwarm:
    values: dict[str, Any] = {
        "steps": 20, "units_per_step": 4, "rows_per_unit": 32, "validate_every": 2,
        "stop_early": NEVER_BETTER,
    }  # fmt: skip
    return MemorySwarm(make_papers(*workers, **(values | changed)), folder, together=True)


def assert_ended(swarm: MemorySwarm, updates: int) -> None:
    """All of so many steps is sealed, paid and trained, and each due loss is under a seal."""
    spec = swarm.papers.spec.message
    shorter = spec.batch.model_copy(update={"steps": updates})
    plain, record = plain_run(spec.model_copy(update={"batch": shorter})), swarm.history().record
    assert record is not None and record.ended
    *_, last = swarm.seals()
    assert last.last and last.updates == updates and last.vested == last.earned > 0
    assert last.next == updates * spec.batch.units_per_step and not last.unsealed
    assert swarm.state_roots() == [{root} for root in plain.states]
    assert swarm.validation() == plain.validation
    assert {each.of: each.loss for each in swarm.messages(Validation)} == plain.validation


@pytest.mark.parametrize("stages", [pytest.param(1, marks=pytest.mark.nightly), 2])
async def test_stop_early__losses_no_better__no_step_is_begun_any_more(
    stages: int, tmp_path: Path
) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob", "cem", "dan", stages=stages)

    await swarm.run()

    assert_ended(swarm, 6)
    assert len(swarm.seals()) == 7 and not swarm.merged().keys() - set(range(1, 7))


@pytest.mark.parametrize(
    "event",
    [
        "stops_early",
        pytest.param("validated", marks=pytest.mark.nightly),
        pytest.param("seal_stored", marks=pytest.mark.nightly),
    ],
)
async def test_stop_early__coordinator_dies_around_it__ends_alike(
    event: str, tmp_path: Path
) -> None:
    swarm = swarm_of(tmp_path, "ann", "bob")
    swarm.deadly = {(COORDINATOR, event, 6): COORDINATOR}

    await swarm.run()

    assert swarm.deadly == {} and swarm.restarts == 1
    assert_ended(swarm, 6)


async def test_stop_early__checked_job__what_was_done_is_audited_first(tmp_path: Path) -> None:
    audit = audit_spec(sums=MILLION, deadline=4)
    swarm = swarm_of(tmp_path, "ann", "bob", "cem", audit=audit)

    await swarm.run()

    assert swarm.docket().is_clear and not swarm.docket().convicts
    assert_ended(swarm, 6)


async def test_stop_early__more_patience_than_losses__trains_to_the_end(tmp_path: Path) -> None:
    patient = StopEarlySpec(patience=3, min_delta=10**15)
    swarm = swarm_of(tmp_path, "ann", "bob", steps=6, stop_early=patient)

    await swarm.run()

    assert [seal.updates for seal in swarm.seals()] == [1, 2, 3, 4, 5, 6]
    assert [each.of for each in swarm.messages(Validation)] == [2, 4]
    assert sorted(swarm.validation()) == [2, 4, 6]
