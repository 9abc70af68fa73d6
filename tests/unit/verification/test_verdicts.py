"""What verdicts follow from: names of a leaf, seeds, projections, bytes of a bucket."""

from dataclasses import replace

import pytest

from contracts.terms.amounts import Flops
from contracts.terms.errors import Malformed
from contracts.terms.ids import StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import LocalSpec
from contracts.terms.work import Verdict
from tests.support.dockets import audit_spec, peer
from tests.support.history import JobMaker, make_digest, make_members
from verification.distances.thresholds import (
    SATURATED,
    projected_of,
    projections_allowed,
    shipped_calibration,
)
from verification.draws.cases import Case, Heard, repeat_of
from verification.draws.selection import Rules
from verification.verdicts import (
    PROJECTIONS,
    apart,
    is_complete,
    kinds_of,
    limits_of,
    seed_for,
    verdict_of,
    verdict_on_sum,
)

WORK = Case(
    make_digest("work"),
    "work",
    peer("ann"),
    StageIndex(0),
    StepNumber(3),
    StepNumber(3),
    Flops(10),
    make_digest("work"),
    peer("ann"),
    beacon=make_digest("beacon 3"),
)


def test_seed_for__work__is_the_auditors_own() -> None:
    assert seed_for(WORK, peer("bob")) == seed_for(WORK, peer("bob"))
    assert seed_for(WORK, peer("bob")) != seed_for(WORK, peer("cem"))


def test_seed_for__repeat__is_that_of_the_report_whoever_repeats_it() -> None:
    beacons = {"beacon": make_digest("beacon 5"), "seeded_by": make_digest("beacon 3")}
    again = replace(WORK, kind="report", doer=peer("bob"), **beacons)  # type: ignore[arg-type]

    assert seed_for(again, peer("out")) == seed_for(WORK, peer("bob"))
    assert seed_for(again, peer("oda")) == seed_for(again, peer("out"))


@pytest.mark.parametrize(
    ("stated", "replayed", "distance"),
    [
        ((), (), 0),
        ((5, -7), (5, -7), 0),
        ((5, -7), (6, -4), 3000),
        ((0,), (5, -7), SATURATED),
        ((-(2**63),), (2**63 - 1,), SATURATED),
    ],
)
def test_apart__numbers_after_each_item__are_the_farthest_in_1e_9(
    stated: tuple[int, ...], replayed: tuple[int, ...], distance: int
) -> None:
    assert apart(stated, replayed) == distance


def test_verdict_of__distances__are_those_of_the_limits_by_their_names() -> None:
    limits = {"y": 3, "dx": 1}

    assert verdict_of(WORK, (1, 3), limits) == "match"  # dx, y
    assert verdict_of(WORK, (3, 1), limits) == "mismatch"
    for distances in ((1,), (1, 1, 1)):
        with pytest.raises(Malformed):
            verdict_of(WORK, distances, limits)


@pytest.mark.parametrize(
    ("said", "is_same", "verdict"),
    [
        (None, True, "match"),
        (None, False, "mismatch"),
        ("match", True, "match"),
        ("match", False, "mismatch"),
        ("mismatch", True, "mismatch"),
        ("mismatch", False, "match"),
    ],
)
def test_verdict_on_sum__repeat_of_a_report__agrees_if_it_finds_what_that_said(
    said: Verdict | None, is_same: bool, verdict: Verdict
) -> None:
    case = replace(WORK, kind="bucket")
    if said is not None:
        case = repeat_of(case, Heard(peer("bob"), said, make_digest("report")), StepNumber(5))

    assert verdict_on_sum(case, is_same=is_same) == verdict


@pytest.mark.parametrize("stage", range(3))
def test_is_complete__leaf_without_one_of_its_names_or_its_loss__is_not(stage: int) -> None:
    job = JobMaker(members=make_members("abc", stages=3))
    group, item = StageIndex(stage), ItemNumber(4)
    leaf = job.leaf(group, item)

    fewer = [
        leaf.model_copy(update={"tensors": leaf.tensors[:place] + leaf.tensors[place + 1 :]})
        for place in range(len(leaf.tensors))
    ]
    other = leaf.model_copy(update={"numbers": () if leaf.numbers else (1,)})

    assert len(fewer) == (4 if stage == 1 else 3)
    assert is_complete(job.spec, group, [leaf])
    assert not any(is_complete(job.spec, group, [leaf, each]) for each in [*fewer, other])


def local_job() -> JobMaker:
    """One whose peers take three steps each on their own."""
    local = LocalSpec(
        inner_steps=3, segments=1, rewarm_steps=1, outer_rate=1, outer_momentum=0, round_time=1,
        quorum=1,
    )  # fmt: skip
    changes = {"strategy": "local", "local": local, "rows_per_unit": 3}
    return JobMaker(spec_changes=changes)


@pytest.mark.parametrize(("num_numbers", "outcome"), [(31, True), (30, False), (1, False)])
def test_is_complete__leaf_of_local_steps__tells_of_each_step(
    num_numbers: int, outcome: bool
) -> None:
    job = local_job()
    leaf = job.leaf(StageIndex(0), ItemNumber(4)).model_copy(update={"numbers": (1,) * num_numbers})

    assert is_complete(job.spec, StageIndex(0), [leaf]) == outcome


@pytest.mark.parametrize("job", [JobMaker(), local_job()], ids=["gradients", "differences"])
def test_limits_of__repeat_of_a_report__adds_that_of_projections(job: JobMaker) -> None:
    table = shipped_calibration()
    rules = Rules(job.spec.job(), job.spec, audit_spec(), table, {})
    case = repeat_of(WORK, Heard(peer("bob"), "match", make_digest("report")), StepNumber(5))
    classes = dict.fromkeys([case.worker, case.doer, peer("cem")], table.classes[0])

    limits = limits_of(rules, case, peer("cem"), classes)

    kinds = {name.partition("/")[0] for name in limits}
    assert kinds == {*kinds_of(job.spec, StageIndex(0)), PROJECTIONS}
    names = [f"{kind}/relative_l2" for kind in projected_of(kinds_of(job.spec, StageIndex(0)))]
    assert limits[PROJECTIONS] == projections_allowed(max(limits[name] for name in names))
