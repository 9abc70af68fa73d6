"""Work that is bound and that nobody can compute on: what auditors of the real stage make of it.

Two friends in adjacent stages agree on a unit that nobody could compute: all of the job is theirs,
so auditors from outside find it. One binds parts that nobody can use: its mates do. What they leave
is run again by a stranger.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contracts.terms.ids import StepNumber
from tallystick.gym.registry import behaviour_of
from tests.numerics.loop import synthetic_corpus
from tests.support.evidence_swarm import bundles_in, evidence_swarm
from tests.support.friends import SHARED, friend, until_convicted
from training.averaging.slices import Slice
from training.recipes import micro
from training.worker.ports import Behaviour, Compute
from verification.auditing.bundle_bytes import show
from verification.auditing.bundle_file import BundleFile
from verification.auditing.rerun import rerun
from verification.distances.thresholds import SATURATED

CORPUS = synthetic_corpus()
CONFIG = replace(micro(), optimizer=replace(micro().optimizer, warmup_steps=1))
SMALL: dict[str, Any] = {"stages": 2, "steps": 2, "units_per_step": 3, "chunks": 1}


@pytest.mark.parametrize(
    ("value", "rows"),
    [
        (float("nan"), None),
        pytest.param(1e37, None, marks=pytest.mark.nightly),
        pytest.param(1.0, 1, marks=pytest.mark.nightly),
    ],
)
def test_friends__exchange_what_nobody_can_compute_on__are_convicted_by_bundles_that_hold(
    tmp_path: Path, value: float, rows: int | None
) -> None:
    outside = ("out", "oda", "olu")
    swarm = evidence_swarm(tmp_path, CONFIG, CORPUS, "ann", "bob", outside=outside, **SMALL)
    swarm.behaviours = {name: friend(value, rows=rows) for name in ("ann", "bob")}

    asyncio.run(until_convicted(swarm, "ann", "bob"))

    assert not swarm.lines("evidence_not_kept")
    found = set()
    for path in bundles_in(tmp_path):
        with BundleFile(path) as file:
            shown = show(file)
        outcome = asyncio.run(rerun(path))
        assert outcome.is_confirmed and shown.case.step == SHARED[0]
        if shown.case.kind == "work":
            assert outcome.verdict == "mismatch"
            assert {each.here for each in outcome.distances} == {SATURATED}
            found.add(shown.case.doer)
    assert found == {swarm.session_of(name).peer for name in ("ann", "bob")}


class WrongNorm(Behaviour):
    """Sends what it computed, and says of its first part that it is a little longer."""

    def parts(self, compute: Compute, step: StepNumber) -> tuple[Slice, ...]:
        """See `Behaviour.parts`."""
        first, *others = compute.gradient()
        return (replace(first, norm_squared=first.norm_squared + 1), *others)


@pytest.mark.parametrize(
    "lie",
    [
        "wrong_norm",
        *(
            pytest.param(f"{each}_parts", marks=pytest.mark.nightly)
            for each in ("not_finite", "oversized")
        ),
    ],
)
def test_parts__that_nobody_can_use__convict_by_the_bundles_of_members(
    tmp_path: Path, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYSTICK_HOOKS", "tallystick.gym.hooks")
    quick = {"stages": 1, "exchange_timeout": 1500}  # auditors have all the time they need
    swarm = evidence_swarm(tmp_path, CONFIG, CORPUS, "ann", "bob", "cem", **(SMALL | quick))
    swarm.together = True
    rules = swarm.papers.spec.message.rules
    swarm.behaviours["ann"] = WrongNorm() if lie == "wrong_norm" else behaviour_of(lie, rules)

    asyncio.run(until_convicted(swarm, "ann"))

    outcomes = [asyncio.run(rerun(path)) for path in bundles_in(tmp_path)]
    about_ann = [each for each in outcomes if each.shown.case.kind == "work"]
    assert len(about_ann) >= 2 and all(each.is_confirmed for each in outcomes)
    for each in about_ann:
        assert each.verdict == "mismatch"
        assert all(far.here == SATURATED for far in each.distances if far.is_far)
        assert {far.name.split(".")[0] for far in each.distances if far.is_far} == {"gradient"}
