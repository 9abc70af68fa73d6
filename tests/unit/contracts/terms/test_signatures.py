"""Signatures: of whom, under which domain, in one form."""

from functools import cache

import pytest

from contracts.terms.digest import keccak
from contracts.terms.errors import BadSignature, Malformed, UnknownVersion
from contracts.terms.ids import Address
from contracts.terms.messages import Notice, Seal
from contracts.terms.signatures import (
    Signed,
    decode_signed,
    expect,
    recover,
    verify_session,
    verify_wallet,
)
from contracts.terms.typed_data import Domain, TypedStruct
from tests.support.history import DOMAIN, JobMaker, make_session, make_wallet, messages_of

ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


@cache
def made() -> tuple[Signed[Seal], Signed[Notice]]:
    maker = JobMaker()
    seal = maker.coordinator.sign(maker.seal_step().seal, DOMAIN)
    return seal, maker.session.sign(messages_of(maker.items, Notice)[0])


def coordinator() -> Address:
    return make_wallet("coordinator").account


def test_verify_wallet__own_signature__is_accepted_and_no_other() -> None:
    seal, notice = made()
    verify_wallet(seal, coordinator(), DOMAIN)

    for domain in (Domain(1, DOMAIN.escrow), Domain(DOMAIN.chain_id, Address(bytes(20)))):
        with pytest.raises(BadSignature):
            verify_wallet(seal, coordinator(), domain)
    with pytest.raises(BadSignature, match="not signed by wallets"):
        verify_wallet(notice, coordinator(), DOMAIN)


def test_recover__upper_half_s__is_refused() -> None:
    signature = made()[0].signature
    s = ORDER - int.from_bytes(signature[32:64], "big")
    other = signature[:32] + s.to_bytes(32, "big") + bytes([55 - signature[64]])

    with pytest.raises(BadSignature):
        recover(DOMAIN.signing_digest(made()[0].message.digest()), other)


@pytest.mark.parametrize(
    "signature", [b"", bytes(65), bytes(64) + b"\x1b", b"\xff" * 64 + b"\x1b", bytes(64) + b"\0"]
)
def test_recover__no_signature__is_refused(signature: bytes) -> None:
    with pytest.raises(BadSignature):
        recover(keccak(b"x"), signature)


def test_verify_session__own_signature__is_accepted_and_no_other() -> None:
    _, notice = made()
    key = make_session("coordinator of job").key
    altered = Signed(notice.message.model_copy(update={"address": "x"}), notice.signature)
    verify_session(notice, key)

    for signed, by in ((notice, make_session("somebody").key), (altered, key)):
        with pytest.raises(BadSignature):
            verify_session(signed, by)


def test_decode_signed__encoded__comes_back() -> None:
    for signed in made():
        assert decode_signed(signed.encoded()) == signed


@pytest.mark.parametrize("signature", [b"", bytes(63), bytes(66)])
def test_decode_signed__signature_of_another_length__is_malformed(signature: bytes) -> None:
    with pytest.raises(Malformed):
        decode_signed(Signed(made()[0].message, signature).encoded())


def test_expect__another_kind__is_unknown_version() -> None:
    with pytest.raises(UnknownVersion):
        expect(made()[0], Notice)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("uint96", 2**96),
        ("uint64", -1),
        ("bool", 1),
        ("address", b"x"),
        ("bytes32", b"x"),
        ("uint8[]", 1),
    ],
)
def test_typed_struct__value_that_does_not_fit__is_malformed(kind: str, value: object) -> None:
    with pytest.raises(Malformed):
        TypedStruct("X", ((kind, "x"),)).hash([value])
