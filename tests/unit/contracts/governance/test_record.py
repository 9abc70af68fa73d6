"""Opening a job and adding leases."""

from dataclasses import replace
from functools import cache

import pytest

from contracts.governance.record import JobRecord, check_signature, open_job, with_lease
from contracts.terms.errors import BadSignature, Conflict, Equivocation, Malformed
from contracts.terms.ids import ZERO_ADDRESS
from contracts.terms.messages import JobOpening, JobSpec, LeaseAccept
from contracts.terms.signatures import Signed
from tests.support.history import JobMaker, Member, make_digest, make_members, make_session


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


def test_open_job__signed_by_poster_and_coordinator__begins_at_step_zero() -> None:
    assert (opened().step, opened().ended) == (0, False)
    assert opened().previous == made().opening.digest()


def test_open_job__spec_signed_by_another__is_refused() -> None:
    maker = made()

    with pytest.raises(BadSignature):
        opened(spec=maker.coordinator.sign(maker.spec, maker.domain))


def test_open_job__opening_of_another_job__is_refused() -> None:
    other = made().opening.model_copy(update={"job_spec": make_digest("x")})

    with pytest.raises(Conflict):
        opened(opening=made().coordinator.sign(other, made().domain))


def test_open_job__flops_of_a_stage_missing__is_refused() -> None:
    maker = made()
    spec = maker.spec.model_copy(update={"unit_flops": maker.spec.unit_flops * 2})
    opening = maker.opening.model_copy(update={"job": spec.job(), "job_spec": spec.digest()})

    with pytest.raises(Malformed):
        opened(maker.poster.sign(spec, maker.domain), maker.coordinator.sign(opening, maker.domain))


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


def test_with_lease__same_lease_again__is_a_conflict() -> None:
    record = with_lease(opened(), signed_lease(made().members[0]))

    with pytest.raises(Conflict):
        with_lease(record, signed_lease(made().members[0]))


def test_with_lease__same_key_other_terms__is_equivocation() -> None:
    record = with_lease(opened(), signed_lease(made().members[0]))

    with pytest.raises(Equivocation):
        with_lease(record, signed_lease(made().members[0], price=5))


def test_with_lease__job_that_has_ended__is_refused() -> None:
    late = make_members(("dan",))[0]

    with pytest.raises(Conflict):
        with_lease(made().record, signed_lease(late))


def test_check_signature__message_of_a_peer_without_lease__is_refused() -> None:
    maker = JobMaker()
    commit, _ = maker.commit(maker.members[0], maker.close())

    with pytest.raises(BadSignature):
        check_signature(opened(), maker.members[0].session.sign(commit))


def test_check_signature__message_that_is_not_of_a_step__is_refused() -> None:
    maker = made()
    with pytest.raises(Malformed):
        check_signature(opened(), maker.coordinator.sign(maker.opening, maker.domain))


def test_pay_leases__account_with_two_members__each_stands_with_half_of_the_newest_bond() -> None:
    ann, bob = make_members(("ann", "bob"))
    second, third = (replace(ann, session=make_session(name)) for name in ("second", "third"))
    maker = JobMaker(members=[ann, second, bob])
    maker.seal_step()
    stake = maker.lease(ann).stake + 3

    record = with_lease(maker.record, signed(maker, third, stake=stake))

    stakes = {peer: lease.stake for peer, lease in record.pay_leases().items()}
    assert stakes[ann.session.peer] == stakes[second.session.peer] == stake // 2
    assert stakes[third.session.peer] == stake // 3, "as it would be if it came"
    assert stakes[bob.session.peer] == maker.lease(bob).stake


def signed(maker: JobMaker, member: Member, **changed: object) -> Signed[LeaseAccept]:
    return member.wallet.sign(maker.lease(member).model_copy(update=changed), maker.domain)
