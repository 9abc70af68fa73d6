"""Audit files of a checked job: which forgeries are seen, whoever signs again.

`FORGED` are stories that the rules do not allow: told from the beginning by everybody together,
anchored and paid as they are told, and refused all the same. The rules of draws and of seals are
broken one by one in tests/unit; here are a verdict, and beacons, which only the chain knows.
`TOLD_AGAIN` are stories that could have been so, e.g. auditors that lie: each has its own valid
file; told afterwards they are not what was anchored, and where somebody does not sign again they
fail at his signature.
"""

from collections.abc import Callable, Set
from dataclasses import replace
from functools import cache
from typing import TypeAlias, TypeGuard, TypeVar

import pytest

from contracts.governance.checking import Reported
from contracts.terms.auditors import AuditorList
from contracts.terms.errors import AuditMismatch
from contracts.terms.history import Kept, claim_leaves_root
from contracts.terms.ids import ZERO_DIGEST, Address, PeerId, StepNumber
from contracts.terms.messages import JobSpec, Message, Notice, Seal, StepBeacon
from contracts.terms.signatures import Signed
from contracts.terms.work import WorkClaim, findings_leaf, findings_of
from tests.support.audited import Audited, AuditedMarket, audited, checked_job, pins_of
from tests.support.checked_history import (
    ANN,
    BOB,
    HONEST,
    WORK_STEPS,
    CheckedMaker,
    Said,
    Twist,
    make_auditors,
    told,
)
from tests.support.dockets import begin_checked
from tests.support.fake_chain import SHIPS
from tests.support.history import JobMaker, Report, make_digest, make_members, make_session
from verification.audit import audit_file
from verification.audit.audit_file import AuditFile
from verification.docket import Docket
from verification.draws.cases import Case

Story: TypeAlias = Callable[[CheckedMaker, Said], Said]
M = TypeVar("M", StepBeacon, Seal)


def check(file: AuditFile) -> audit_file.Verdict:
    """Verify a file whose block the reader knows."""
    return audit_file.verify(file.encoded(), SHIPS, pins=pins_of(file), begin=begin_checked)


def anchored(twist: Twist = HONEST) -> Audited:
    """The file of a job that was told so from the beginning, anchored and paid so."""
    market = AuditedMarket()
    job = told(twist, market)
    market.claim_all(job)
    return audited(market, job)


def refused(file: AuditFile) -> AuditMismatch:
    """Why the file is refused."""
    with pytest.raises(AuditMismatch) as caught:
        check(file)
    return caught.value


# ----------------------------------------------------------------------------- what is found


def test_verify__checked_job__derives_draws_verdicts_and_what_was_forfeited() -> None:
    verdict = check(checked_job().file)

    assert verdict.anchored and verdict.work == "audited where it was drawn"
    assert verdict.checked["drawn"] > 9 and verdict.checked["settled by an audit"] > 5
    assert verdict.checked["reports missed"] >= 1 and verdict.checked["convicted"] >= 1
    bob = verdict.accounts[checked_job().job.members[BOB].wallet.account]
    assert bob.forfeited == bob.earned - bob.vested > 0
    assert all(each.earned == each.vested + each.forfeited for each in verdict.accounts.values())
    outside = outside_accounts(checked_job().job) & verdict.accounts.keys()
    assert any(_claimed(verdict, each) for each in outside)
    assert verdict.disagreements == ()
    assert set(verdict.odds) == {member.session.peer for member in checked_job().job.members}


def _claimed(verdict: audit_file.Verdict, account: Address) -> int:
    channel = verdict.accounts[account].channel
    assert channel is not None
    return channel.claimed


def test_verify__checked_job_and_the_shipped_table__is_another_table() -> None:
    with pytest.raises(AuditMismatch, match="another calibration table"):
        audit_file.verify(checked_job().data, SHIPS)


def test_verify__outside_auditor_was_paid_more_than_vests__is_a_disagreement() -> None:
    made = anchored()
    paid = {leaf.account: leaf.vested for leaf in made.job.seals[-1].pay}
    account = min(outside_accounts(made.job) & paid.keys())  # of those whom a draw has named
    vested = paid[account]
    made.market.write_account(made.job, account, claimed=vested + 1, earned=vested + 1)

    found = check(made.market.file(made.job)).disagreements

    assert len(found) == 2 and all(each.startswith(f"0x{account.hex()}: was ") for each in found)


def test_verify__what_an_outside_auditor_was_paid_is_not_shown__is_refused() -> None:
    contracts = checked_job().file.block.contracts
    assert contracts is not None
    shown, account = contracts["escrow"], min(outside_accounts(checked_job().job))
    left = {name: each for name, each in shown.storage.items() if account.hex() not in name}
    proof = {**contracts, "escrow": replace(shown, storage=left)}
    block = replace(checked_job().file.block, contracts=proof)

    found = refused(replace(checked_job().file, block=block))

    assert len(left) == len(shown.storage) - 2
    assert found.data["path"] == "block/contracts/escrow/storage"


# --------------------------------------------------------------------- a list that nobody serves


def without_list(file: AuditFile, number: int) -> AuditFile:
    """The file of somebody to whom nobody served the list of one batch."""
    anchor_chain = list(file.anchor_chain)
    anchor_chain[number] = replace(anchor_chain[number], leaves=(), is_served=False)
    return replace(file, anchor_chain=tuple(anchor_chain))


def drawn_whole(maker: CheckedMaker, beacon: StepBeacon) -> StepBeacon:
    """Of steps 2 to 6 everything is drawn, as nobody has seen what the second batch holds."""
    is_drawn = 2 <= beacon.of <= 6
    return changed(maker.beacon(2), of=beacon.of, batch=ZERO_DIGEST) if is_drawn else beacon


def test_verify__list_that_nobody_served_and_all_was_drawn__fits_and_is_no_anchored_file() -> None:
    file = anchored(Twist(said=beacons(drawn_whole))).file

    found = check(without_list(file, 1))

    assert (found.anchored, found.checked["batches not shown"]) == (False, 1)
    assert "another beacon for step 2" in refused(file).message  # whose lists are all shown


def test_verify__list_not_shown_and_drawn_as_if_it_were__is_refused() -> None:
    for number in range(WORK_STEPS):
        found = refused(without_list(checked_job().file, number))

        assert "the chain has another beacon" in found.message


# ---------------------------------------------------------------------- seals that no batch holds


OF_THE_FILE = {"signatures", "seals", "seals in no batch"}
"""What is counted in the whole file."""


def figures(file: AuditFile) -> audit_file.Verdict:
    """All that an anchored file says of the job."""
    found = check(file)
    assert found.anchored
    counts = {name: each for name, each in found.checked.items() if name not in OF_THE_FILE}
    return replace(found, checked=counts)


def told_until(step: int) -> tuple[AuditedMarket, CheckedMaker]:
    """The honest story up to a seal."""
    market = AuditedMarket()
    job = CheckedMaker(name="checked", members=make_members("abc"), opening_block=1, market=market)
    for _ in range(step):
        job.next_seal(works=job.record.step < WORK_STEPS)
    return market, job


@pytest.mark.parametrize("step", [2, 4])
def test_verify__any_part_of_the_story_not_anchored_yet__is_checked_and_changes_no_figure(
    step: int,
) -> None:
    market, job = told_until(step)
    file = market.file(job)
    for later in range(1, 6):
        job.next_seal(works=job.record.step < WORK_STEPS)

        longer = replace(file, items=tuple(job.items))

        assert figures(longer) == figures(file)
        assert check(longer).checked["seals in no batch"] == later
    assert figures(market.file(job)) != figures(file)  # now that it is anchored


def test_verify__empty_seals_appended_by_the_coordinator__change_no_figure() -> None:
    market, job = told_until(4)
    file = market.file(job)
    for _ in range(2):
        job.seal([item for each in job.beacons() for item in job.kept(each)])

    longer = replace(file, items=tuple(job.items))

    assert figures(longer) == figures(file)
    assert check(longer).checked["seals in no batch"] == 2


def test_verify__seal_in_no_batch_says_a_beacon_that_is_not_the_anchor_chains__is_refused() -> None:
    market, job = told_until(4)
    file = market.file(job)
    job.seal([job.session.sign(changed(each, block=1)) for each in job.beacons()])

    found = refused(replace(file, items=tuple(job.items)))

    assert "another beacon for step" in found.message


# ------------------------------------------------------------------------- what no rule allows


class Gullible(Docket):
    """Believes a verdict whatever its distances say."""

    def _verdict_follows(self, case: Case, report: Reported) -> bool:
        return True


def gullible(spec: JobSpec, outside: AuditorList) -> Docket:
    """Folds with such a docket."""
    return Gullible(begin_checked(spec, outside).rules)


def changed(message: M, **values: object) -> M:
    """A message that says something else."""
    return message.model_copy(update=values)


def beacons(change: Callable[[CheckedMaker, StepBeacon], StepBeacon]) -> Story:
    """Each beacon is changed."""
    return lambda maker, messages: [
        change(maker, each) if isinstance(each, StepBeacon) else each for each in messages
    ]


def reports(worker: int, change: Callable[[CheckedMaker, Report], Report]) -> Story:
    """Each report on somebody's work is changed."""
    return lambda maker, messages: [
        each
        if isinstance(each, Message) or _worker(maker, each) != maker.peer(worker)
        else change(maker, each)
        for each in messages
    ]


def flipped(_maker: CheckedMaker, report: Report) -> Report:
    """A match, whatever its distances say."""
    claim, leaf = report
    found = findings_of([leaf])
    other = findings_leaf("match", found.distances, found.projections)
    return claim.model_copy(update={"leaves": claim_leaves_root([other])}), other


def lied(maker: CheckedMaker, report: Report) -> Report:
    """All matches, and the distances say so too."""
    return maker.report(_case(maker, report), "match")


def _case(maker: CheckedMaker, report: Report) -> Case:
    return maker.docket.open[report[0].subject][0]


def _worker(maker: CheckedMaker, report: Report) -> PeerId:
    return _case(maker, report).worker


def other_beacon(of: int, **values: object) -> Story:
    """The beacon of one step is another one."""
    return beacons(lambda _, beacon: changed(beacon, **values) if beacon.of == of else beacon)


def beacon_moved(maker: CheckedMaker, beacon: StepBeacon) -> StepBeacon:
    """Step 2 is drawn with the beacon of step 1."""
    return changed(maker.beacon(1), of=StepNumber(2)) if beacon.of == 2 else beacon


def renumbered(maker: CheckedMaker, messages: Said) -> Said:
    """Notices in a row again."""
    found, number = Said(), maker.record.next_notice
    for each in messages:
        if isinstance(each, Notice):
            each, number = each.model_copy(update={"number": number}), number + 1
        found.append(each)
    return found


def outside_accounts(maker: JobMaker) -> Set[Address]:
    """Of all who may audit from outside."""
    assert maker.outside is not None
    return {each.account for each in maker.outside.auditors}


def _is_report(item: Kept) -> TypeGuard[Signed[WorkClaim]]:
    return (
        isinstance(item, Signed)
        and isinstance(item.message, WorkClaim)
        and item.message.what == "report"
    )


def subject_of(maker: CheckedMaker, number: int) -> Case:
    """An open case of a member's work."""
    opened = [case for case, _ in maker.docket.open.values()]
    return next(case for case in opened if case.doer == maker.peer(number))


FORGED: dict[str, tuple[str, Twist]] = {
    "false work is found right": (
        "the seal says something else",
        Twist(gullible, reports(BOB, flipped)),
    ),
    "a beacon is another one": (
        "the chain has another beacon for step 2",
        Twist(said=other_beacon(2, beacon=make_digest("chosen"))),
    ),
    "a beacon of another batch": (
        "the chain has another beacon for step 1",
        Twist(said=other_beacon(1, batch=make_digest("batch"))),
    ),
    "a beacon is moved": (
        "the chain has another beacon for step 2",
        Twist(said=beacons(beacon_moved)),
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_verify__forged_and_signed_by_everybody_and_anchored__is_refused(name: str) -> None:
    reason, twist = FORGED[name]

    found = refused(anchored(twist).file)

    assert str(found.data["path"]).startswith("items/")
    assert reason in found.message


# -------------------------------------------------------------------- what might have been so


def kept_back(maker: CheckedMaker, messages: Said) -> Said:
    """No report on bob's work is ever sealed; whoever owes one is called late."""
    found: Said = []
    for each in messages:
        if isinstance(each, Message) or _worker(maker, each) != maker.peer(BOB):
            found.append(each)
        elif _case(maker, each).opened + maker.audit.deadline <= maker.next_step:
            found.append(maker.notice_of("missed_report", each[0].peer, each[0].subject))
    return renumbered(maker, found)


def invented(maker: CheckedMaker, messages: Said) -> Said:
    """Ann's data are said to be missing."""
    if maker.next_step != 3:
        return messages
    case = subject_of(maker, ANN)
    return renumbered(maker, [*messages, maker.notice_of("missing_data", case.doer, case.subject)])


TOLD_AGAIN: dict[str, Twist] = {
    "false work is found right": Twist(said=reports(BOB, lied)),
    "reports are left out": Twist(said=kept_back),
    "data are said to be missing": Twist(said=invented),
    "one more is outside": Twist(outside=("out", "oda", "olu")),
}


@cache
def told_again(name: str) -> Audited:
    return anchored(TOLD_AGAIN[name])


@pytest.mark.parametrize("name", TOLD_AGAIN)
def test_verify__another_story_signed_by_everybody__is_not_what_was_anchored(name: str) -> None:
    other = told_again(name)
    assert check(other.file).anchored  # it might have been so

    found = refused(replace(checked_job().file, items=other.file.items))

    assert str(found.data["path"]).startswith("anchor_chain/")


@pytest.mark.parametrize("name", TOLD_AGAIN)
def test_verify__another_story_that_one_does_not_sign__fails_at_a_signature(name: str) -> None:
    other = told_again(name)
    cheated = {_signer(each.message) for each in _new_in(other.file)} - {None}
    assert cheated

    for peer in cheated:
        found = refused(unsigned(other.file, peer))  # even if the forgery was anchored

        assert "not signed by" in found.message
        assert str(found.data["path"]).startswith("items/")


def unsigned(file: AuditFile, peer: PeerId | None) -> AuditFile:
    """What `peer` never said is signed by somebody else in its name."""
    new, forger = _new_in(file), make_session("forger")
    items = [
        forger.sign(each.message)
        if isinstance(each, Signed) and each in new and _signer(each.message) == peer
        else each
        for each in file.items
    ]
    return replace(file, items=tuple(items))


def _new_in(file: AuditFile) -> list[Signed[Message]]:
    """What was never said in the honest story."""
    items = checked_job().file.items
    return [each for each in file.items if isinstance(each, Signed) and each not in items]


def _signer(message: Message) -> PeerId | None:
    return None if isinstance(message, Notice) else getattr(message, "peer", None)


@pytest.mark.parametrize("names", [(), ("out", "oda", "olu")])
def test_verify__another_list_of_auditors__is_not_what_the_opening_names(
    names: tuple[str, ...],
) -> None:
    items = [
        make_auditors(names) if isinstance(item, AuditorList) else item
        for item in checked_job().file.items
    ]

    assert refused(replace(checked_job().file, items=tuple(items))).data["path"] == "items/2"


def test_verify__a_message_of_the_audit_left_out__is_refused() -> None:
    items = checked_job().file.items
    audits = [
        index
        for index, item in enumerate(items)
        if isinstance(item, AuditorList)
        or (isinstance(item, Signed) and isinstance(item.message, StepBeacon | Notice))
        or _is_report(item)
    ]
    assert len(audits) > 20

    for index in audits:
        left = items[:index] + items[index + 1 :]

        assert str(refused(replace(checked_job().file, items=left)).data["path"]).startswith(
            "items/"
        )


def test_verify__last_seals_left_out__is_refused() -> None:
    items = checked_job().file.items
    seals = [
        index
        for index, item in enumerate(items)
        if isinstance(item, Signed) and isinstance(item.message, Seal)
    ]

    for index in seals[:-1]:
        found = refused(replace(checked_job().file, items=items[: index + 1]))

        assert str(found.data["path"]).startswith("anchor_chain/")
