"""Opening a job and adding leases."""

from dataclasses import replace
from functools import cache

import pytest

from contracts.governance.record import JobRecord, check_signature, open_job, with_lease
from contracts.terms.errors import BadSignature, Conflict, Equivocation, Malformed
from contracts.terms.ids import ZERO_ADDRESS, StageIndex, StepNumber
from contracts.terms.messages import JobOpening, JobSpec, LeaseAccept
from contracts.terms.signatures import Signed
from tests.support.history import (
    JobMaker,
    Member,
    make_digest,
    make_members,
    make_session,
    outside_auditors,
    report_claim,
)


@cache
def made() -> JobMaker:
    maker = JobMaker()
    maker.seal_step(last=True)
    return maker


def opened(
    spec: Signed[JobSpec] | None = None, opening: Signed[JobOpening] | None = None
) -> JobRecord:
    """The job of `made()`, with another spec or opening."""
    maker = made()
    return open_job(
        spec or maker.poster.sign(maker.spec, maker.domain),
        opening or maker.coordinator.sign(maker.opening, maker.domain),
        maker.domain,
    )


def signed_lease(member: Member, **changed: object) -> Signed[LeaseAccept]:
    lease = made().lease(member).model_copy(update=changed)
    return member.wallet.sign(lease, made().domain)


def test_open_job__signed_by_another_of_another_job_or_without_flops__is_refused() -> None:
    maker, domain = made(), made().domain
    other = maker.opening.model_copy(update={"job_spec": make_digest("x")})
    long = maker.spec.model_copy(update={"item_flops": maker.spec.item_flops * 2})
    opening = maker.opening.model_copy(update={"job": long.job(), "job_spec": long.digest()})

    with pytest.raises(BadSignature):
        opened(spec=maker.coordinator.sign(maker.spec, domain))
    with pytest.raises(Conflict):
        opened(opening=maker.coordinator.sign(other, domain))
    with pytest.raises(Malformed):
        opened(maker.poster.sign(long, domain), maker.coordinator.sign(opening, domain))


@pytest.mark.parametrize(
    "changed",
    [
        {"job": make_digest("x")},
        {"price": 1_000_001},
        {"stake": 999_999},
        {"account": ZERO_ADDRESS},
    ],
)
def test_with_lease__terms_that_the_job_does_not_allow__are_refused(
    changed: dict[str, object],
) -> None:
    error = BadSignature if "account" in changed else Conflict
    with pytest.raises(error):
        with_lease(opened(), signed_lease(made().members[0], **changed))


def test_with_lease__known_already_with_other_terms_or_too_late__is_refused() -> None:
    record = with_lease(opened(), signed_lease(made().members[0]))

    with pytest.raises(Conflict):
        with_lease(record, signed_lease(made().members[0]))
    with pytest.raises(Equivocation):
        with_lease(record, signed_lease(made().members[0], price=5))
    with pytest.raises(Conflict):  # the job has ended
        with_lease(made().record, signed_lease(make_members(("dan",))[0]))


def test_check_signature__of_no_peer_or_of_no_step__is_refused() -> None:
    maker = JobMaker()
    claim, _ = maker.claim(maker.members[0])

    with pytest.raises(BadSignature):
        check_signature(opened(), maker.members[0].session.sign(claim))
    with pytest.raises(Malformed):
        check_signature(opened(), maker.coordinator.sign(made().opening, maker.domain))


def test_check_signature__of_an_auditor_from_outside__counts_for_reports_only() -> None:
    maker = JobMaker()
    record = replace(maker.record, outside=outside_auditors(["out"]))
    session = make_session("out")
    claim, _ = maker.claim(maker.members[0], peer=session.peer)
    report, _ = report_claim(
        maker.spec.job(), session.peer, "match",
        round=StepNumber(1), group=StageIndex(0), subject=claim.digest(),
    )  # fmt: skip

    check_signature(record, session.sign(report))
    with pytest.raises(BadSignature):
        check_signature(record, session.sign(claim))


def test_seal_before__void_rounds__remember_what_the_newest_state_comes_from() -> None:
    maker = JobMaker()
    maker.seal_step()
    first = maker.record.previous
    maker.seal([])

    found = [maker.record.seal_before(StepNumber(step)) for step in range(1, 5)]

    assert found == [None, first, maker.record.previous, None]


def test_pay_leases__account_with_two_members__each_stands_with_half_of_the_newest_bond() -> None:
    ann, bob = make_members(("ann", "bob"))
    second, third = (replace(ann, session=make_session(name)) for name in ("second", "third"))
    maker = JobMaker(members=[ann, second, bob])
    maker.seal_step()
    stake = maker.lease(ann).stake + 3

    lease = maker.lease(third).model_copy(update={"stake": stake})
    record = with_lease(maker.record, third.wallet.sign(lease, maker.domain))

    stakes = {peer: lease.stake for peer, lease in record.pay_leases().items()}
    assert stakes[ann.session.peer] == stakes[second.session.peer] == stake // 2
    assert stakes[third.session.peer] == stake // 3, "as it would be if it came"
    assert stakes[bob.session.peer] == maker.lease(bob).stake
