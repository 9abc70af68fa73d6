"""From sealed beacons, reports and Notices to who is drawn, settled, frozen and convicted."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from contracts.governance.checking import Forfeit, Terms, Unchecked
from contracts.terms.amounts import BaseUnits, PricePerPflop
from contracts.terms.auditors import AuditorList
from contracts.terms.errors import InvalidSeal, Refused
from contracts.terms.ids import PeerId, StageIndex, StepNumber
from contracts.terms.messages import MILLION
from contracts.terms.work import Verdict, WorkClaim
from tests.support.dockets import (
    ITEM_FLOPS,
    LIMIT,
    OTHER_CLASS,
    STAGE,
    CheckedJob,
    audit_spec,
    calibration,
    checked_spec,
    distances_of,
    peer,
)
from tests.support.history import make_digest
from verification import docket as dockets
from verification.distances.thresholds import projections_allowed
from verification.draws.cases import Case
from verification.draws.selection import step_beacon


def drawn(job: CheckedJob, *names: str) -> CheckedJob:
    """One step in which these worked, and its beacon."""
    job.seal(*(job.commit(name) for name in names))
    job.seal(job.beacon(1))
    return job


def one_case(**changed: object) -> CheckedJob:
    """Ann worked and is drawn; Bob and Cem may audit her, then those outside."""
    job = CheckedJob(**changed)  # type: ignore[arg-type]
    job.seal(*(job.commit(name) for name in job.workers))
    job.seal(job.beacon(1))
    others = [case.subject for case, _ in job.docket.open.values() if case.doer != peer("ann")]
    left = {s: each for s, each in job.docket.open.items() if s not in others}
    job.docket = replace(job.docket, open=left)
    return job


def above_the_gate(**changed: Any) -> tuple[CheckedJob, WorkClaim]:
    """Of three who worked Ann alone is drawn, as her gradient is too long."""
    job = CheckedJob(audit=audit_spec(floor=1, **changed))
    high = job.commit("ann")
    job.seal(high, job.commit("bob"), job.commit("cem"), above=[high])
    job.seal(job.beacon(1))
    return job, high


def test_begin__another_calibration_table__is_refused() -> None:
    spec = checked_spec(audit_spec(thresholds=make_digest("other")))
    empty = AuditorList(auditors=())

    with pytest.raises(Refused, match="another calibration table"):
        dockets.begin(spec, empty, calibration())


# ------------------------------------------------------------------------------------------ draws


def test_after__beacon__draws_what_its_step_holds_for_auditors_of_other_owners() -> None:
    job = CheckedJob(owners={"cem": "ann"})

    standing = job.seal(job.commit("ann"), job.commit("bob"), job.commit("cem"))

    assert standing.settled_to == 0
    assert not job.docket.open

    standing = job.seal(job.beacon(1))

    assert standing.settled_to == 2
    cases = {job.name_of(case.doer): case for case, _ in job.docket.open.values()}
    assert sorted(cases) == ["ann", "bob", "cem"]
    assert cases["ann"].order[0] == peer("bob")  # cem is the same owner
    assert job.name_of(cases["bob"].order[0]) in ("ann", "cem")
    assert len(cases["bob"].order) == 1 + 3  # one of that owner, three outside


def test_after__small_floor_and_little_at_risk__draws_nobody() -> None:
    job = CheckedJob(audit=audit_spec(floor=1))

    drawn(job, "ann", "bob", "cem")

    assert not job.docket.open  # one in a million, and stake a million times the value
    assert job.docket.needed_of(StepNumber(1)) == frozenset()


def test_after__list_of_the_batch_is_not_served__draws_everything_by_the_same_beacon() -> None:
    served = CheckedJob(audit=audit_spec(floor=1))
    unserved = CheckedJob(audit=audit_spec(floor=1))
    for job in (served, unserved):
        job.seal(job.commit("ann"), job.commit("bob"), job.commit("cem"))

    served.seal(served.beacon(1))
    unserved.seal(unserved.beacon(1, is_served=False))

    (beacon,) = {case.beacon for case, _ in unserved.docket.open.values()}
    assert beacon == step_beacon(unserved.spec.job(), StepNumber(1), make_digest("beacon 1"))
    assert (len(unserved.docket.open), len(served.docket.open)) == (3, 0)


def test_after__beacon_of_another_step_than_the_next__is_refused() -> None:
    job = CheckedJob()
    job.seal(job.commit("ann"))
    job.seal(job.commit("ann"))

    with pytest.raises(InvalidSeal, match="not of the next step"):
        job.seal(job.beacon(2))


def test_after__beacon_of_the_seal_it_stands_in__is_refused() -> None:
    job = CheckedJob()

    with pytest.raises(InvalidSeal, match="not of the next step"):
        job.seal(job.commit("ann"), job.beacon(1))


def test_after__five_steps_wait_for_beacons__takes_no_more_work() -> None:
    job = CheckedJob()
    for _ in range(5):
        assert job.docket.takes_work(0)
        job.seal(job.commit("ann"))

    with pytest.raises(InvalidSeal, match="too much waits"):
        job.seal(job.commit("ann"))

    job.seal(job.commit("ann"), job.beacon(1))


UNIT = 10**6  # base units for a unit at the price ceiling, which is the dearest there may be


def one_price(**changed: object) -> CheckedJob:
    """Everybody, inside and outside, is paid the price ceiling."""
    audit = audit_spec(price=PricePerPflop(UNIT), **changed)
    return CheckedJob(audit=audit, price=UNIT)


def test_after__budget_cannot_pay_for_a_whole_step__takes_no_more_work() -> None:
    assert not one_price(budget=BaseUnits(6 * UNIT - 1)).docket.takes_work(0)
    assert one_price(budget=BaseUnits(6 * UNIT)).docket.takes_work(0)


def test_after__outside_is_cheaper__the_budget_counts_what_a_member_may_ask() -> None:
    cheap = audit_spec(price=PricePerPflop(1), budget=BaseUnits(6 * UNIT - 1))

    assert not CheckedJob(audit=cheap).docket.takes_work(0)


def test_after__steps_wait_for_their_beacons_and_audits__budget_is_kept_for_all_of_them() -> None:
    job = one_price(budget=BaseUnits(18 * UNIT))
    for _ in range(3):
        assert not job.docket.is_spent
        job.seal(*(job.commit(name) for name in job.workers))

    assert job.docket.is_spent
    job.seal(*map(job.beacon, (1, 2, 3)))
    assert job.docket.is_spent  # all of it was drawn, and is not done
    assert job.docket.reserved == 18 * ITEM_FLOPS


def test_after__half_of_the_reports_are_repeated__budget_is_kept_for_those_too() -> None:
    repeats = MILLION // 2

    assert not one_price(repeats=repeats, budget=BaseUnits(9 * UNIT - 1)).docket.takes_work(0)
    job = one_price(repeats=repeats, budget=BaseUnits(9 * UNIT))
    job.seal(*(job.commit(name) for name in job.workers))
    assert job.docket.reserved == 9 * ITEM_FLOPS
    job.seal(job.beacon(1))
    job.seal(*(job.report(case, "match") for case, _ in job.docket.open.values()))
    assert job.docket.reserved == 3 * ITEM_FLOPS


def test_after__disputes_cost_more_than_the_budget__the_last_auditor_gets_what_is_left() -> None:
    job = one_price(budget=BaseUnits(7 * UNIT))
    job.seal(*(job.commit(name) for name in job.workers))
    job.seal(job.beacon(1))
    paid = []
    for beacon, said in ((3, "mismatch"), (5, "match"), (7, "match")):
        case = next(case for case, _ in job.docket.open.values() if case.doer == peer("ann"))
        paid.append(job.seal(job.report(case, said)).audits[case.auditor])  # type: ignore[arg-type, index]
        convicts = job.docket.convicts & job.members.keys()
        job.seal(
            *(job.notice("suspension", job.name_of(each)) for each in convicts), job.beacon(beacon)
        )

    case = next(case for case, _ in job.docket.open.values() if case.doer == peer("ann"))
    standing = job.seal(job.report(case, "match"))

    assert paid == [2 * ITEM_FLOPS] * 3
    assert standing.audits == {case.auditor: ITEM_FLOPS}
    assert job.docket.left == 0


def test_after__sum__is_drawn_for_the_other_peers_of_its_stage() -> None:
    job = CheckedJob(audit=audit_spec(floor=1, sums=MILLION))

    chunk = job.chunk("ann")
    job.seal(job.commit("ann"), job.commit("bob"), job.commit("cem"), chunk)
    job.seal(job.beacon(1))

    assert job.docket.needed_of(StepNumber(1)) == frozenset({chunk.digest()})
    [case] = [case for case, _ in job.docket.open.values()]
    assert case.kind == "bucket" and case.auditor in {peer("bob"), peer("cem")}
    job.seal(job.report(case, "match"))
    assert job.rulings == [("settled", "ann")]


# ---------------------------------------------------------------------------------------- reports


def test_after__report_matches__settles_and_pays_the_auditor() -> None:
    job = one_case()
    case = job.case_of("ann")

    assert job.standing is not None
    assert job.standing.open_since == {**job.standing.open_since, peer("ann"): 1}
    standing = job.seal(job.report(case, "match"))

    assert job.rulings == [("settled", "ann")]
    assert standing.open_since == {} and standing.owing == frozenset()
    assert standing.audits == {case.auditor: 2 * ITEM_FLOPS}


def test_after__report_in_the_seal_of_its_beacon__does_not_count() -> None:
    job = CheckedJob(workers=("ann", "bob"))
    job.seal(job.commit("ann"), job.commit("bob"))
    ahead = CheckedJob(workers=("ann", "bob"))
    ahead.seal(ahead.commit("ann"), ahead.commit("bob"))
    ahead.seal(ahead.beacon(1))

    job.seal(job.beacon(1), job.report(ahead.case_of("ann"), "match"))

    assert job.case_of("ann").heard == ()


@pytest.mark.parametrize("by", ["ann", "other"])
def test_after__report_of_somebody_not_asked__does_not_count(by: str) -> None:
    job = one_case()
    case = job.case_of("ann")
    somebody = "ann" if by == "ann" else job.name_of(case.order[1])

    job.seal(job.report(case, "match", by=somebody))

    assert job.case_of("ann") == case


def test_after__verdict_that_does_not_follow_from_its_distances__does_not_count() -> None:
    job = one_case()
    case = job.case_of("ann")
    far = job.report(case, "mismatch").findings.distances

    job.seal(job.report(case, "match", distances=far))

    assert job.case_of("ann") == case


def test_after__auditor_owes__holds_back_its_pay_until_it_is_told_late() -> None:
    job = one_case()
    case = job.case_of("ann")
    first, second = (job.name_of(each) for each in case.order[:2])

    with pytest.raises(InvalidSeal, match="not before the seal of step 4"):
        job.seal(job.notice("missed_report", first, case.subject))
    standing = job.seal()
    assert standing.owing == {peer(first)}
    standing = job.seal(job.notice("missed_report", first, case.subject))

    assert job.rulings == [("missed", first)]
    assert standing.owing == {peer(second)}
    assert standing.forfeits == (Forfeit(peer(first), StepNumber(1), "missed_report"),)


def first_is_late(**changed: object) -> tuple[CheckedJob, Case, str, str]:
    """Ann's case, whose first auditor was late; as it was before, and who are asked."""
    job = one_case(**changed)
    case = job.case_of("ann")
    first, second = (job.name_of(each) for each in case.order[:2])
    job.seal()
    job.seal(job.notice("missed_report", first, case.subject))
    return job, case, first, second


def test_after__late_report_of_a_missed_attempt__still_outranks_the_next_one() -> None:
    job, case, first, second = first_is_late()
    now = job.case_of("ann")

    job.seal(
        job.report(now, "mismatch", by=second),
        job.report(now, "match", by=first, attempt=case.attempt),
    )

    assert job.rulings == [("settled", "ann")]


@pytest.mark.parametrize("said", ["match", "missing"], ids=["counts", "does not count"])
def test_after__report_comes_with_the_notice_that_it_is_late__was_missed_if_it_does_not_count(
    said: Verdict,
) -> None:
    job = one_case()
    case = job.case_of("ann")
    first = job.name_of(case.order[0])
    job.seal()
    notice = job.notice("missed_report", first, case.subject)

    standing = job.seal(notice, job.report(case, said, by=first))

    if said == "match":
        assert job.rulings == [("settled", "ann")]
        assert not standing.owing and not standing.forfeits
        assert standing.audits[peer(first)] == case.flops
    else:
        assert job.rulings == [("missed", first)]


def test_after__late_auditor_is_drawn_again_in_a_dispute__its_old_report_says_nothing() -> None:
    job, before, late, _ = first_is_late(outside=())
    job.seal(job.report(job.case_of("ann"), "mismatch"))
    job.seal(job.beacon(5))
    case = job.case_of("ann")
    assert (case.auditor, case.beacon == before.beacon) == (peer(late), False)

    job.seal(job.report(before, "match", by=late))

    assert job.case_of("ann") == case
    job.seal(job.report(case, "match", by=late))
    assert [each.said.auditor for each in job.docket.audits] == [peer(late)]


def test_after__report_lost_to_one_that_came_late__is_not_that_of_the_next_round() -> None:
    job, before, first, second = first_is_late()
    said = job.report(job.case_of("ann"), "match", by=second)

    job.seal(said, job.report(before, "mismatch", by=first))
    job.seal(job.beacon(5))

    case = job.case_of("ann")
    assert peer(second) in case.order  # the coordinator keeps that report as said
    assert said.claim.attempt not in range(case.first, case.first + len(case.order))


def test_after__nobody_reports__settles_as_unrepeated_and_is_watched() -> None:
    job, _ = above_the_gate(deadline=1)
    while job.docket.open:
        case = job.case_of("ann")
        assert case.auditor is not None
        job.seal(job.notice("missed_report", job.name_of(case.auditor), case.subject))

    assert job.rulings[-1] == ("unrepeated", "ann")
    assert job.docket.watched == {peer("ann"): 0}
    job.seal(job.commit("ann"), job.commit("bob"), job.commit("cem"))
    assert sorted(each.rate for each in job.docket.undrawn[job.step])[-1] * 2 == 1
    assert job.docket.watched == {peer("ann"): 1}


def test_after__auditor_leaves__the_next_one_is_asked_when_its_report_is_late() -> None:
    job = one_case()
    case = job.case_of("ann")
    first, second = (job.name_of(each) for each in case.order[:2])

    with pytest.raises(InvalidSeal, match="not before"):
        job.seal(job.notice("leave", first), job.notice("missed_report", first, case.subject))
    standing = job.seal(job.notice("leave", first))
    assert standing.owing == {peer(first)}
    standing = job.seal(job.notice("missed_report", first, case.subject))

    assert job.rulings == []  # to be gone is no offence
    assert not standing.forfeits
    assert standing.owing == {peer(second)}


def test_after__auditor_leaves_after_its_report__the_report_counts() -> None:
    job = one_case()
    case = job.case_of("ann")
    job.seal(job.notice("leave", job.name_of(case.order[0])))

    job.seal(job.report(case, "match"))

    assert job.rulings == [("settled", "ann")]


def worked() -> CheckedJob:
    """A step, whose beacon is not known yet."""
    job = CheckedJob()
    job.seal(*(job.commit(name) for name in job.workers))
    return job


def disputed(**changed: object) -> CheckedJob:
    """Ann was accused, and the beacon that draws a third owner is not known yet."""
    job = one_case(**changed)
    job.seal(job.report(job.case_of("ann"), "mismatch"))
    return job


@pytest.mark.parametrize(("begun", "beacon"), [(worked, 1), (disputed, 3)])
def test_after__somebody_leaves_when_the_beacon_is_known__is_asked_all_the_same(
    begun: Callable[[], CheckedJob], beacon: int
) -> None:
    honest, bent = begun(), begun()
    honest.seal(honest.beacon(beacon))
    order = honest.case_of("ann").order

    bent.seal(bent.beacon(beacon), bent.notice("leave", bent.name_of(order[0])))

    assert bent.case_of("ann").order == order


def test_after__auditor_is_convicted_of_something_else__the_next_one_is_asked_at_once() -> None:
    job = one_case()
    first, second = (job.name_of(each) for each in job.case_of("ann").order[:2])
    job.docket = replace(job.docket, convicts=frozenset({peer(first)}))

    standing = job.seal(job.notice("suspension", first))

    assert standing.owing == {peer(second)}


@pytest.mark.parametrize("workers", [("ann", "bob", "cem"), ("ann",)], ids=["member", "outside"])
def test_after__auditor_was_convicted_when_its_report_is_late__missed_nothing(
    workers: tuple[str, ...],
) -> None:
    job = one_case(workers=workers)
    case = job.case_of("ann")
    first, second = (job.name_of(each) for each in case.order[:2])
    job.seal()
    job.docket = replace(job.docket, convicts=frozenset({peer(first)}))
    suspended = [job.notice("suspension", first)] if first in workers else []

    standing = job.seal(*suspended, job.notice("missed_report", first, case.subject))

    assert job.rulings == []
    assert standing.owing == {peer(second)}


@pytest.mark.parametrize(
    ("what", "name", "refusal"),
    [
        ("missed_report", "ann", "nobody waits for it"),
        ("missing_data", "cem", "is about somebody else"),
        ("suspension", "cem", "of somebody not convicted"),
    ],
)
def test_after__notice_of_somebody_whom_it_cannot_be_about__is_refused(
    what: str, name: str, refusal: str
) -> None:
    job = one_case()

    with pytest.raises(InvalidSeal, match=refusal):
        job.seal(job.notice(what, name, job.case_of("ann").subject))


# --------------------------------------------------------------------------------------- verdicts


def accused(**changed: object) -> CheckedJob:
    """Ann's first auditor says mismatch, and a second one is drawn."""
    job = disputed(**changed)
    job.seal(job.beacon(3))
    return job


def test_after__mismatch__freezes_and_draws_a_third_owner_by_the_next_beacon() -> None:
    job = one_case()
    first = job.case_of("ann").auditor

    standing = job.seal(job.report(job.case_of("ann"), "mismatch"))

    assert job.rulings == [("accused", "ann")]
    assert standing.frozen == {peer("ann")} and standing.owing == frozenset()
    standing = job.seal(job.beacon(3))
    case = job.case_of("ann")
    assert first not in case.order and peer("ann") not in case.order
    assert case.auditor in {peer("bob"), peer("cem")}
    assert standing.frozen == {peer("ann")}


@pytest.mark.parametrize("place", [0, 1])
def test_after__mismatch__a_third_owner_on_another_device_class_is_asked_first(place: int) -> None:
    workers = ("ann", "bob", "cem", "dan")
    alike = accused(workers=workers)
    wanted = alike.name_of(alike.case_of("ann").order[place])

    mixed = accused(workers=workers, classes={wanted: OTHER_CLASS})

    assert mixed.case_of("ann").heard == alike.case_of("ann").heard
    assert mixed.case_of("ann").auditor == peer(wanted)
    mixed.seal(mixed.report(mixed.case_of("ann"), "mismatch"))
    assert mixed.rulings == [("convicted", "ann")]


def test_after__two_against_one__is_convicted_forfeits_and_has_to_be_suspended() -> None:
    job = accused()

    standing = job.seal(job.report(job.case_of("ann"), "mismatch"))

    assert job.rulings == [("convicted", "ann")]
    assert [(each.peer, each.step) for each in standing.forfeits][-1] == (peer("ann"), None)
    assert standing.frozen == frozenset() and standing.open_since == {}
    with pytest.raises(InvalidSeal, match="still a member"):
        job.seal()
    job.seal(job.notice("suspension", "ann"))
    assert peer("ann") not in job.members


@pytest.mark.parametrize(("said", "ruling"), [("mismatch", "slashable"), ("match", "unconfirmed")])
def test_after__convicted__an_outside_auditor_confirms_before_stake_is_touched(
    said: Verdict, ruling: str
) -> None:
    job = accused()
    job.seal(job.report(job.case_of("ann"), "mismatch"))

    job.seal(job.notice("suspension", "ann"), job.beacon(5))
    case = job.case_of("ann")

    assert {job.name_of(each) for each in case.order} <= {"out", "oda", "olu"}
    (late,) = job.docket.awaited()  # ann is gone: what it alone held, these two have had
    assert {job.name_of(each) for each in late.heard} == {"bob", "cem"}
    job.seal(job.report(case, said))
    assert job.rulings == [(ruling, "ann")]
    assert not job.docket.open


def test_after__second_auditor_contradicts__the_first_is_frozen_instead() -> None:
    job = accused()
    first = job.name_of(job.case_of("ann").heard[0].auditor)

    standing = job.seal(job.report(job.case_of("ann"), "match"))

    assert job.rulings == [("contradicted", first)]
    assert standing.frozen == {peer(first)}
    assert standing.open_since == {peer("ann"): 1}


@pytest.mark.parametrize(
    ("third", "convicts"), [("match", {"first"}), ("mismatch", {"ann", "second"})]
)
def test_after__third_auditor__whoever_is_alone_is_convicted(
    third: str, convicts: set[str]
) -> None:
    job = accused()
    job.seal(job.report(job.case_of("ann"), "match"))
    job.seal(job.beacon(5))
    case = job.case_of("ann")
    names = {"ann": "ann"} | {
        role: job.name_of(each.auditor)
        for role, each in zip(("first", "second"), case.heard, strict=True)
    }

    job.seal(job.report(case, third))  # type: ignore[arg-type]

    assert {name for what, name in job.rulings if what == "convicted"} == {
        names[role] for role in convicts
    }


def test_after__slashable_and_one_auditor_contradicted__names_those_who_agree() -> None:
    job = accused()
    job.seal(job.report(job.case_of("ann"), "match"))
    job.seal(job.beacon(5))
    third = job.case_of("ann")
    first, second = (each.auditor for each in third.heard)
    job.seal(job.report(third, "mismatch"))
    convicts = [job.name_of(each) for each in sorted(job.docket.convicts)]
    job.seal(*(job.notice("suspension", name) for name in convicts), job.beacon(7))
    confirming = job.case_of("ann")

    job.seal(job.report(confirming, "mismatch"))

    (ruling,) = (each for each in job.docket.rulings if each.what == "slashable")
    assert ruling.by == (first, third.auditor, confirming.auditor)
    assert second not in ruling.by


def test_after__accused_and_nobody_left_to_look__nothing_is_proved() -> None:
    job = CheckedJob(workers=("ann", "bob"), outside=())
    job.seal(job.commit("ann"), job.commit("bob"))
    job.seal(job.beacon(1))
    job.seal(job.report(job.case_of("ann"), "mismatch"), job.report(job.case_of("bob"), "match"))

    standing = job.seal(job.beacon(3))

    assert ("unrepeated", "ann") in job.rulings
    assert standing.frozen == frozenset() and not standing.forfeits


# ------------------------------------------------------------------------------------ missing data


def test_after__missing_without_the_coordinators_word__is_only_a_silence() -> None:
    job = one_case()

    standing = job.seal(job.report(job.case_of("ann"), "missing"))

    assert job.rulings == [] and not standing.audits
    assert job.case_of("ann").auditor is not None


def test_after__missing_said_again_after_the_notice__counts() -> None:
    job = one_case()
    case = job.case_of("ann")
    report = job.report(case, "missing")
    assert not job.docket.wants(report)

    job.seal(job.notice("missing_data", "ann", case.subject))
    assert job.docket.wants(report)
    job.seal(report)

    assert job.case_of("ann").awaits == job.step


def called_missing() -> CheckedJob:
    """Ann's data are missing, say her first auditor and the coordinator; a second one is drawn."""
    job = one_case()
    case = job.case_of("ann")
    job.seal(job.report(case, "missing"), job.notice("missing_data", "ann", case.subject))
    job.seal(job.beacon(3))
    return job


def test_after__missing_for_two__costs_unvested_pay_and_nothing_else() -> None:
    job = called_missing()

    standing = job.seal(job.report(job.case_of("ann"), "missing"))

    assert job.rulings == [("missing", "ann")]
    assert [(each.peer, each.step) for each in standing.forfeits] == [(peer("ann"), None)]
    assert job.docket.convicts == frozenset() and not job.docket.open


def test_after__second_auditor_finds_the_data__is_settled_by_what_it_says() -> None:
    job = called_missing()

    job.seal(job.report(job.case_of("ann"), "match"))

    assert job.rulings == [("settled", "ann")]


def test_after__claim_of_an_earlier_round_is_sealed__is_drawn_by_its_seal_and_vests_with_it() -> (
    None
):
    job = CheckedJob(audit=audit_spec())
    pending = job.commit("ann")
    job.seal()  # a void round
    job.seal(pending, job.commit("bob"))

    assert job.docket.needed_of(StepNumber(1)) == frozenset({pending.digest()})
    assert job.docket.oldest_needed == 1
    job.seal(job.beacon(2))

    case = job.case_of("ann")
    assert (case.step, case.held_since) == (1, 2)
    job.seal(job.report(case, "match"))
    assert job.rulings == [("settled", "ann")]


# ------------------------------------------------------------------------------------------ repeats


def repeated(work: str, **changed: object) -> CheckedJob:
    """Ann's audit by somebody of the stage is drawn to be repeated outside."""
    job = one_case(audit=audit_spec(repeats=MILLION), **changed)
    job.seal(job.report(job.case_of("ann"), work))  # type: ignore[arg-type]
    job.seal(job.beacon(3))
    return job


def repeat_case(job: CheckedJob) -> Case:
    [case] = [case for case, _ in job.docket.open.values() if case.kind == "report"]
    return case


def repeat(job: CheckedJob, case: Case, verdict: str, projections: int) -> object:
    """What an outside auditor says: how far the work is off, and the projections."""
    work: Verdict = "match" if verdict == "match" else "mismatch"
    found = distances_of(case.stage, job.spec, work, projections=projections)
    same = verdict == "match" and projections <= projections_allowed(LIMIT)
    return job.report(case, "match" if same else "mismatch", distances=found)


def test_after__report_is_repeated_outside_and_agrees__is_settled() -> None:
    job = repeated("match")
    case = repeat_case(job)

    assert {job.name_of(each) for each in case.order} <= {"out", "oda", "olu"}
    assert case.seeded_by == step_beacon(job.spec.job(), StepNumber(1), make_digest("beacon 1"))
    job.seal(repeat(job, case, "match", projections_allowed(LIMIT)))

    assert [what for what, _ in job.rulings] == ["settled"]


def test_after__projections_a_little_too_far_apart__accuse_the_auditor() -> None:
    job = repeated("match")
    case = repeat_case(job)

    job.seal(repeat(job, case, "match", projections_allowed(LIMIT) + 1))

    assert job.rulings == [("accused", job.name_of(case.doer))]


def test_after__rubber_stamp_is_seen_twice__auditor_is_convicted_and_the_work_drawn_again() -> None:
    job = repeated("match")
    case = repeat_case(job)
    stamper = job.name_of(case.doer)

    job.seal(repeat(job, case, "match", 10**9))
    assert job.rulings == [("accused", stamper)]
    job.seal(job.beacon(5))
    job.seal(repeat(job, repeat_case(job), "match", 10**9))

    assert ("convicted", stamper) in job.rulings
    assert job.case_of("ann").awaits == job.step


def test_after__work_is_drawn_again__turns_have_other_numbers_than_before() -> None:
    job, before, late, stamper = first_is_late(audit=audit_spec(repeats=MILLION))
    job.seal(job.report(job.case_of("ann"), "match", by=stamper))
    for beacon in (5, 7):
        job.seal(job.beacon(beacon))
        job.seal(repeat(job, repeat_case(job), "match", 10**9))

    job.seal(job.notice("suspension", stamper), job.beacon(9))

    (case,) = (case for case, _ in job.docket.open.values() if case.subject == before.subject)
    assert case.auditor == peer(late) and case.attempt not in (before.attempt, before.attempt + 1)


def test_after__data_are_missing_for_repeats__costs_who_did_the_work_and_not_its_auditor() -> None:
    job = repeated("match")
    case = repeat_case(job)
    job.seal(job.report(case, "missing"), job.notice("missing_data", "ann", case.subject))
    job.seal(job.beacon(5))

    standing = job.seal(job.report(repeat_case(job), "missing"))

    assert job.rulings == [("missing", "ann")]
    assert [each.peer for each in standing.forfeits] == [peer("ann")]


def summed(said: str, *, repeats: int = MILLION, **changed: object) -> CheckedJob:
    """Ann's sum was drawn, somebody of the stage said this, and the beacon of that is here."""
    audit = audit_spec(floor=1, sums=MILLION, repeats=repeats)
    job = CheckedJob(audit=audit, **changed)  # type: ignore[arg-type]
    job.seal(*(job.commit(name) for name in job.workers), job.chunk("ann"))
    job.seal(job.beacon(1))
    job.seal(job.report(job.case_of("ann"), said))  # type: ignore[arg-type]
    job.seal(job.beacon(3))
    return job


def test_after__report_on_a_sum__is_repeated_outside_by_its_verdict_alone() -> None:
    job = summed("match")
    case = repeat_case(job)

    assert {job.name_of(each) for each in case.order} <= {"out", "oda", "olu"}
    assert (case.said, case.worker, case.flops) == ("match", peer("ann"), 0)
    assert case.is_of_sum and case.seeded_by is None
    assert job.docket.needed_of(StepNumber(1)) == frozenset({case.work})
    assert not job.docket.wants(job.report(case, "match", distances=(0,)))
    standing = job.seal(job.report(case, "match"))

    assert [what for what, _ in job.rulings] == ["settled"]
    assert not standing.audits and job.docket.is_clear


def test_after__report_on_a_sum__is_repeated_as_often_as_the_job_says() -> None:
    drawn_of = [len(summed("match", repeats=n).docket.open) for n in (0, 1, MILLION)]

    assert drawn_of == [0, 0, 1]
    assert summed("match", outside=()).docket.is_clear


def test_after__wrong_sum_was_stamped__auditor_is_convicted_and_the_sum_drawn_again() -> None:
    job = summed("match")
    case = repeat_case(job)
    stamper = job.name_of(case.doer)

    job.seal(job.report(case, "mismatch"))
    assert job.rulings == [("accused", stamper)]
    job.seal(job.beacon(5))
    job.seal(job.report(repeat_case(job), "mismatch"))

    assert ("convicted", stamper) in job.rulings
    job.seal(job.notice("suspension", stamper), job.beacon(7))
    again = job.case_of("ann")
    assert again.kind == "bucket" and again.subject == case.work
    job.seal(job.report(again, "mismatch"))
    assert ("accused", "ann") in job.rulings


def test_after__right_sum_was_called_wrong__repeats_convict_the_accuser_alone() -> None:
    job = summed("mismatch")
    case = repeat_case(job)
    accuser = job.name_of(case.doer)
    job.seal(job.report(job.case_of("ann"), "match"), job.report(case, "mismatch"))

    assert case.said == "mismatch"
    assert sorted(job.rulings) == [("accused", accuser), ("contradicted", accuser)]
    job.seal(job.beacon(5))
    job.seal(job.report(job.case_of(accuser), "mismatch"))
    assert ("convicted", accuser) in job.rulings


# ------------------------------------------------------------------------------------------ the end


def test_after__last_with_open_draws__is_refused() -> None:
    job = one_case()

    with pytest.raises(InvalidSeal, match="draws are open"):
        job.seal(last=True)

    job.seal(job.report(job.case_of("ann"), "match"))
    job.seal(job.beacon(3))
    assert job.docket.is_clear
    job.seal(last=True)


def test_oldest_needed__of_undrawn_and_open__is_the_oldest_step_of_work() -> None:
    job = one_case()
    job.seal(job.commit("bob"))

    assert job.docket.oldest_needed == 1

    job.seal(job.report(job.case_of("ann"), "match"))

    assert job.docket.oldest_needed == 1  # its report may be repeated


# ------------------------------------------------------------------------------- what is needed


def test_needed_of__step_without_its_beacon__is_everything() -> None:
    job = CheckedJob()

    job.seal(job.commit("ann"))

    assert job.docket.needed_of(StepNumber(1)) is None


def test_needed_of__above_the_norm_gate__is_drawn_for_certain_and_the_rest_is_not_needed() -> None:
    job, high = above_the_gate()

    assert [case.doer for case, _ in job.docket.open.values()] == [peer("ann")]
    assert job.docket.needed_of(StepNumber(1)) == frozenset({high.digest()})


def test_needed_of__report_may_be_repeated__still_is_the_work_until_its_beacon() -> None:
    job = one_case()
    case = job.case_of("ann")

    job.seal(job.report(case, "match"))
    assert job.docket.needed_of(StepNumber(1)) == frozenset({case.work})

    job.seal(job.beacon(3))
    assert job.docket.needed_of(StepNumber(1)) == frozenset()


# ----------------------------------------------------------------------------------- money at risk


def covered(job: CheckedJob, members: Mapping[PeerId, StageIndex] | None = None) -> dict[str, int]:
    """Units of the next step that each of ann, bob and cem is covered for, by name."""
    expected = {peer(name): 2 for name in ("ann", "bob", "cem")}
    terms = Terms(job.spec, job.leases, job.members if members is None else members)
    found = job.docket.most_units(StepNumber(job.step + 1), STAGE, expected, terms)
    return {job.name_of(each): units for each, units in found.items()}


def test_most_units__newcomers__what_their_stake_covers_if_half_of_the_auditors_are_friends() -> (
    None
):
    job = CheckedJob(stake=3999)  # q = v / ((3999 + v) / 2) <= 1

    assert covered(job) == {"ann": 3, "bob": 3, "cem": 3}


def test_most_units__pay_waits__counts_with_the_stake_for_as_long() -> None:
    job = CheckedJob(stake=3999)
    job.seal(job.commit("ann", 5), job.commit("bob", 1))
    assert covered(job) == {"ann": 8, "bob": 4, "cem": 3}

    job.seal(job.beacon(1))
    job.seal()

    assert covered(job) == {"ann": 3, "bob": 3, "cem": 3}


def test_most_units__pay_is_frozen__does_not_count() -> None:
    job = CheckedJob(stake=3999)
    job.seal(job.commit("ann"), job.commit("bob"), job.commit("cem"))
    job.seal(job.beacon(1), job.commit("ann", 5))
    before = covered(job)

    job.seal(job.report(job.case_of("ann"), "mismatch"), job.beacon(2))

    assert (before["ann"], covered(job)["ann"]) == (10, 3)


def test_most_units__owner_works_next_door__its_stake_does_not_count() -> None:
    job = CheckedJob(workers=("ann", "bob", "cem", "dan"), owners={"dan": "ann"}, stake=3999)
    members = {**job.members, peer("dan"): StageIndex(1)}

    assert covered(job, members) == {"ann": 0, "bob": 3, "cem": 3}


def test_most_units__nobody_else_and_nobody_outside__covers_nothing() -> None:
    job = CheckedJob(workers=("ann",), outside=())
    terms = Terms(job.spec, job.leases, job.members)

    found = job.docket.most_units(StepNumber(1), STAGE, {peer("ann"): 6}, terms)

    assert found == {peer("ann"): 0}


def test_most_units__nobody_checks__limits_nobody() -> None:
    job = CheckedJob()
    terms = Terms(job.spec, job.leases, job.members)

    assert Unchecked().most_units(StepNumber(1), STAGE, {peer("ann"): 6}, terms) == {}
