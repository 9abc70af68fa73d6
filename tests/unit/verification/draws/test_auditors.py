"""Who is asked to audit, and whose device class counts for it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from contracts.governance.checking import Terms
from contracts.terms.ids import Digest, PeerId
from contracts.terms.work import Verdict
from tests.support.dockets import CLASS, OTHER_CLASS, CheckedJob, peer
from tests.support.history import make_digest
from verification.draws.cases import CONFIRMING, FIRST, SECOND, THIRD, Case, Heard
from verification.draws.selection import Candidates, again, auditor_order

STAGE_MATES, OUTSIDE = ("bob", "cem", "dan", "eve"), ("out", "oda", "olu")
BEACONS = [make_digest("beacon", number) for number in range(8)]
UNITS = {peer(name): units for units, name in enumerate(STAGE_MATES, start=1)}


@dataclass(frozen=True)
class Round:
    """Of a case of Ann's work, after Bob, Cem, ... said this."""

    case: Case
    candidates: Candidates

    def order(self, beacon: Digest) -> tuple[PeerId, ...]:
        """Who is asked, the first one first."""
        return self.candidates.order(self.case, self.name, UNITS, beacon)

    def orders(self) -> list[tuple[PeerId, ...]]:
        """By several beacons."""
        return [self.order(beacon) for beacon in BEACONS]

    @property
    def name(self) -> bytes:
        """What the beacon orders them for."""
        return again(self.case.subject, self.case.round)


def after(
    *said: Verdict,
    round: int = SECOND,
    classes: Mapping[str, str] | None = None,
    owners: Mapping[str, str] | None = None,
) -> Round:
    """The round that follows; devices are of one class, unless named."""
    job = CheckedJob(("ann", *STAGE_MATES), owners or {}, OUTSIDE, classes=classes or {})
    job.seal(job.commit("ann"))
    heard = zip(STAGE_MATES, said, strict=False)
    reports = tuple(Heard(peer(name), verdict, make_digest(name)) for name, verdict in heard)
    case = replace(job.docket.undrawn[job.step][0].case, round=round, heard=reports)
    terms = Terms(job.spec, job.leases, job.members)
    return Round(case, Candidates(job.docket.rules, terms, frozenset()))


def peers(*names: str) -> set[PeerId]:
    return {peer(name) for name in names}


def test_order__mismatch__another_class_comes_first_in_the_stage_and_outside() -> None:
    mixed = after("mismatch", classes={"dan": OTHER_CLASS, "olu": OTHER_CLASS})

    for order in mixed.orders():
        assert order[0] == peer("dan") and set(order[1:3]) == peers("cem", "eve")
        assert order[3] == peer("olu") and set(order[4:]) == peers("out", "oda")


def test_order__mismatch__each_group_is_in_the_order_of_the_beacon() -> None:
    mixed = after("mismatch", classes={"cem": OTHER_CLASS, "dan": OTHER_CLASS})
    sought = {each: UNITS[each] for each in peers("cem", "dan")}

    for beacon in BEACONS:
        first = tuple(auditor_order(beacon, mixed.name, sought))
        assert mixed.order(beacon)[:3] == (*first, peer("eve"))


def test_order__mismatch__class_of_who_did_the_work_does_not_matter() -> None:
    others = dict.fromkeys(("bob", "cem", "eve"), OTHER_CLASS)  # Ann and Dan have the same

    mixed = after("mismatch", classes=others)

    assert {order[0] for order in mixed.orders()} == peers("dan")


def test_order__mismatch__owner_of_two_machines_comes_with_that_on_the_other_class() -> None:
    mixed = after("mismatch", classes={"eve": OTHER_CLASS}, owners={"dan": "eve"})

    for order in mixed.orders():
        assert order[0] == peer("eve") and peer("dan") not in order


@pytest.mark.parametrize(
    "name", [f"{CLASS}+cu128", "of no table"], ids=["another build", "none that the table holds"]
)
def test_order__mismatch__a_class_that_is_no_other_one_changes_nothing(name: str) -> None:
    mixed = after("mismatch", classes={"dan": name})

    assert mixed.orders() == after("mismatch").orders()


@pytest.mark.parametrize(
    ("said", "round"),
    [
        ((), FIRST),
        (("missing",), SECOND),
        (("mismatch", "match"), THIRD),
        (("mismatch", "mismatch"), CONFIRMING),
    ],
    ids=["first audit", "confirms missing data", "decides between two", "confirms a conviction"],
)
def test_order__no_second_auditor_of_a_dispute__is_that_of_the_beacon_alone(
    said: tuple[Verdict, ...], round: int
) -> None:
    mixed = after(*said, round=round, classes={"dan": OTHER_CLASS, "olu": OTHER_CLASS})

    assert mixed.orders() == after(*said, round=round).orders()


def test_exposed__devices_of_a_stage_differ__odds_of_its_work_do_not() -> None:
    alike, mixed = CheckedJob(), CheckedJob(classes={"bob": OTHER_CLASS})

    for job in (alike, mixed):
        job.seal(*(job.commit(name) for name in job.workers))

    assert mixed.docket.exposed == alike.docket.exposed
