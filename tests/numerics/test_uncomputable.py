"""Work that is bound and that nobody can compute on: what auditors of the real stage make of it.

Two friends in adjacent stages agree on an item that nobody could compute: all of the job is theirs,
so auditors from outside find it. What they leave is run again by a stranger.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts.terms.digest import formed_tensor
from contracts.terms.items import ItemNumber
from tests.numerics.loop import synthetic_corpus
from tests.support.evidence_swarm import bundles_in, evidence_swarm
from tests.support.friends import friend, until_convicted
from training.recipes import micro
from verification.auditing.bundle_bytes import show
from verification.auditing.bundle_file import BundleFile
from verification.auditing.rerun import rerun
from verification.distances.thresholds import SATURATED

CORPUS = synthetic_corpus()
CONFIG = replace(micro(), optimizer=replace(micro().optimizer, warmup_steps=1))
SMALL: dict[str, Any] = {"stages": 2, "steps": 2, "units_per_step": 3, "chunks": 1}
SHARED = ItemNumber(3)  # of step 2


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
    shape = rows or CONFIG.data.rows_per_unit, CONFIG.model.sequence_length, CONFIG.model.width
    tensor = formed_tensor("float32", shape, np.full(shape, value, "<f4").tobytes())
    swarm.behaviours = {name: friend(SHARED, tensor) for name in ("ann", "bob")}

    asyncio.run(until_convicted(swarm, "ann", "bob"))

    assert not swarm.lines("evidence_not_kept")
    found = set()
    for path in bundles_in(tmp_path):
        with BundleFile(path) as file:
            shown = show(file)
        outcome = asyncio.run(rerun(path))
        assert outcome.is_confirmed and shown.case.step == 2
        if shown.case.kind == "work":
            assert outcome.verdict == "mismatch"
            assert {each.here for each in outcome.distances} == {SATURATED}
            found.add(shown.case.doer)
    assert found == {swarm.session_of(name).peer for name in ("ann", "bob")}
