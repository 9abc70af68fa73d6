"""Signatures: of whom, under which domain, in one form."""

from functools import cache

import pytest
from eth_account import Account
from eth_account.messages import encode_typed_data

from contracts.terms import typed_data
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
from tests.support.history import DOMAIN, JobMaker, make_session, make_wallet

ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141


@cache
def made() -> tuple[Signed[Seal], Signed[Notice]]:
    maker = JobMaker()
    seal = maker.coordinator.sign(maker.seal_step().seal, DOMAIN)
    notice = next(
        item
        for item in maker.items
        if isinstance(item, Signed) and isinstance(item.message, Notice)
    )
    return seal, expect(notice, Notice)


def coordinator() -> Address:
    return make_wallet("coordinator").account


def test_verify_wallet__own_signature__is_accepted() -> None:
    verify_wallet(made()[0], coordinator(), DOMAIN)


@pytest.mark.parametrize(
    "domain", [Domain(1, DOMAIN.escrow), Domain(DOMAIN.chain_id, Address(bytes(20)))]
)
def test_verify_wallet__other_domain__is_refused(domain: Domain) -> None:
    with pytest.raises(BadSignature):
        verify_wallet(made()[0], coordinator(), domain)


def test_verify_wallet__message_that_sessions_sign__is_refused() -> None:
    with pytest.raises(BadSignature):
        verify_wallet(made()[1], coordinator(), DOMAIN)


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


def test_verify_session__own_signature__is_accepted_and_a_foreign_one_refused() -> None:
    _, notice = made()
    verify_session(notice, make_session("coordinator of job").key)

    with pytest.raises(BadSignature):
        verify_session(notice, make_session("somebody").key)


def test_verify_session__altered_message__is_refused() -> None:
    _, notice = made()
    other = Signed(notice.message.model_copy(update={"address": "x"}), notice.signature)

    with pytest.raises(BadSignature):
        verify_session(other, make_session("coordinator of job").key)


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


STRUCTS = [
    typed_data.JOB_OPENING,
    typed_data.OFFER,
    typed_data.LEASE_ACCEPT,
    typed_data.SEAL,
    typed_data.JOB_HEADER,
    typed_data.GRANT,
    typed_data.BOND,
    typed_data.QUIT,
    typed_data.END,
    typed_data.CLOSE,
    typed_data.WITHDRAW,
]


@pytest.mark.parametrize("struct", STRUCTS, ids=[struct.name for struct in STRUCTS])
def test_signing_digest__every_struct__is_what_wallets_sign(struct: TypedStruct) -> None:
    values = [_value(kind, place) for place, (kind, _) in enumerate(struct.fields, start=1)]
    types = {struct.name: [{"type": kind, "name": name} for kind, name in struct.fields]}
    names = {name: _shown(value) for (_, name), value in zip(struct.fields, values, strict=True)}
    domain = {
        "name": "Tallystick",
        "version": "2",
        "chainId": DOMAIN.chain_id,
        "verifyingContract": f"0x{DOMAIN.escrow.hex()}",
    }
    wallet = make_wallet("x")
    signable = encode_typed_data(domain, types, names)

    theirs = Account.sign_message(signable, wallet.secret).signature

    assert wallet.sign_digest(DOMAIN.signing_digest(struct.hash(values))) == bytes(theirs)


def _shown(value: object) -> object:
    if isinstance(value, tuple):
        return [_shown(each) for each in value]
    return f"0x{value.hex()}" if isinstance(value, bytes) else value


def _value(kind: str, place: int) -> object:
    if kind.endswith("[]"):
        return tuple(_value(kind[:-2], each) for each in (place, 7, 8))
    if kind == "bool":
        return True
    if kind == "address":
        return bytes([place]) * 20
    return bytes([place]) * 32 if kind == "bytes32" else place


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
