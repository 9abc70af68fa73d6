"""When do two signed messages prove that one signer has said two things?"""

import random
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from contracts.terms.encoding import decode, encode
from contracts.terms.errors import AuditMismatch, Unreadable
from contracts.terms.ids import SessionKey
from contracts.terms.messages import (
    JobOpening,
    JobSpec,
    LeaseAccept,
    Message,
    Notice,
    Seal,
)
from contracts.terms.signatures import Signed, expect
from contracts.terms.typed_data import Domain
from contracts.terms.work import RoundClosed, WorkClaim
from tests.support.altering import altered, leaves
from tests.support.history import (
    DOMAIN,
    ESCROW,
    JobMaker,
    make_digest,
    make_members,
    make_session,
    make_wallet,
)
from verification.equivocation import (
    MAX_PROOF_BYTES,
    Equivocated,
    TwoValues,
    prove,
    read_proof,
)

M = TypeVar("M", bound=Message)


def _sealed() -> JobMaker:
    job = JobMaker(members=make_members("ab"))
    job.seal_step()
    return job


JOB = _sealed()  # here, because its signatures take more than a unit test may
ANN = JOB.members[0]


def said(kind: type[M]) -> Signed[M]:
    """The first message of a kind in the job's history."""
    signed = [item for item in JOB.items if isinstance(item, Signed)]
    return next(expect(each, kind) for each in signed if isinstance(each.message, kind))


SPEC, OPENING = said(JobSpec), said(JobOpening)
BOBS_LEASE = JOB.members[1].wallet.sign(JOB.lease(JOB.members[1]), DOMAIN)
OTHER_SEAL = said(Seal).message.model_copy(update={"pay_root": make_digest("other pay")})
OTHER_CLAIM = said(WorkClaim).message.model_copy(update={"base": make_digest("other")})
OTHER_CLOSED = said(RoundClosed).message.model_copy(update={"commit_ends": 0})

PROOFS = {
    "seal": TwoValues(DOMAIN, said(Seal), JOB.coordinator.sign(OTHER_SEAL, DOMAIN), bonds=(SPEC,)),
    "claim": TwoValues(
        DOMAIN,
        said(WorkClaim),
        ANN.session.sign(OTHER_CLAIM),
        ANN.session.key,
        (said(LeaseAccept),),
    ),
    "closed": TwoValues(
        DOMAIN, said(RoundClosed), JOB.session.sign(OTHER_CLOSED), JOB.session.key, (SPEC, OPENING)
    ),
}
WHOSE = {
    "seal": JOB.coordinator.account,
    "claim": ANN.wallet.account,
    "closed": JOB.coordinator.account,
}


def refused(two: TwoValues) -> str:
    """Where the proof does not fit."""
    with pytest.raises(AuditMismatch) as caught:
        prove(read_proof(two.encoded()))
    return str(caught.value.data["path"])


@pytest.mark.parametrize("name", PROOFS)
def test_prove__two_values_by_one_key__names_whose_it_is(name: str) -> None:
    two = PROOFS[name]

    found = prove(read_proof(two.encoded()))

    kind = two.first.message.kind
    assert found == Equivocated(kind, JOB.spec.job(), two.key, WHOSE[name], is_bound=True)


def test_prove__no_bond__says_what_the_key_did_and_not_whose_it_is() -> None:
    found = prove(replace(PROOFS["claim"], bonds=()))
    by_wallet = prove(replace(PROOFS["seal"], bonds=()))

    assert (found.account, found.is_bound) == (None, False)
    assert (by_wallet.account, by_wallet.is_bound) == (JOB.coordinator.account, False)


def test_prove__one_value_twice__proves_nothing() -> None:
    two = PROOFS["seal"]

    assert refused(replace(two, second=two.first)) == "second"


def test_prove__another_step__is_another_name() -> None:
    later = OTHER_SEAL.model_copy(update={"step": 2})

    two = replace(PROOFS["seal"], second=JOB.coordinator.sign(later, DOMAIN))

    assert refused(two) == "second"


def test_prove__what_may_be_said_many_times__proves_nothing() -> None:
    two = replace(PROOFS["seal"], first=SPEC)

    assert refused(two) == "first"


SIGNED_BY_OTHERS: dict[str, tuple[str, TwoValues]] = {
    "another wallet": (
        "second",
        replace(PROOFS["seal"], second=make_wallet("eve").sign(OTHER_SEAL, DOMAIN)),
    ),
    "another chain": (
        "second",
        replace(PROOFS["seal"], second=JOB.coordinator.sign(OTHER_SEAL, Domain(1, ESCROW))),
    ),
    "another session key": (
        "second",
        replace(PROOFS["claim"], second=make_session("eve").sign(OTHER_CLAIM)),
    ),
    "a key that the messages do not name": (
        "key",
        TwoValues(
            DOMAIN,
            make_session("eve").sign(said(WorkClaim).message),
            make_session("eve").sign(OTHER_CLAIM),
            make_session("eve").key,
        ),
    ),
    "no key": ("key", replace(PROOFS["claim"], key=SessionKey(b""))),
    "a key beside a wallet": ("key", replace(PROOFS["seal"], key=ANN.session.key)),
    "the lease of somebody else": ("bonds", replace(PROOFS["claim"], bonds=(BOBS_LEASE,))),
    "a bond that says nothing of it": ("bonds", replace(PROOFS["claim"], bonds=(said(Notice),))),
    "an opening without its spec": ("bonds", replace(PROOFS["closed"], bonds=(OPENING,))),
    "a coordinator by its lease": ("bonds", replace(PROOFS["closed"], bonds=(said(LeaseAccept),))),
    "the spec of another job": (
        "bonds",
        replace(PROOFS["seal"], bonds=(JobMaker(name="other").items[0],)),  # type: ignore[arg-type]
    ),
    "a bond that somebody else signed": (
        "bonds",
        replace(
            PROOFS["claim"],
            bonds=(make_wallet("eve").sign(said(LeaseAccept).message, DOMAIN),),
        ),
    ),
}


@pytest.mark.parametrize("name", SIGNED_BY_OTHERS)
def test_prove__not_by_one_key_or_not_its_bond__proves_nothing(name: str) -> None:
    path, two = SIGNED_BY_OTHERS[name]

    assert refused(two) == path


@pytest.mark.parametrize("name", list(PROOFS))
def test_read_proof__leaf_altered__proves_nothing(name: str) -> None:
    value: Any = decode(PROOFS[name].encoded(), max_bytes=MAX_PROOF_BYTES)
    chance = random.Random(name)
    paths = [path for path, _ in leaves(value)]

    for path in chance.sample(paths, 8):
        with pytest.raises(Unreadable if path == ("version",) else AuditMismatch):
            prove(read_proof(encode(altered(value, path, chance))))
