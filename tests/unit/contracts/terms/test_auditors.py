"""The list of outside auditors."""

from typing import Any

import pytest

from contracts.terms.amounts import BaseUnits
from contracts.terms.auditors import AuditorList, OutsideAuditor
from contracts.terms.digest import peer_id
from contracts.terms.encoding import encode
from contracts.terms.errors import Malformed, TooLarge, UnknownVersion
from contracts.terms.ids import MAX_PEERS, Address, SessionKey


def auditor(number: int, stake: int = 5, key: int | None = None) -> OutsideAuditor:
    return OutsideAuditor(
        account=Address(bytes([number]) * 20),
        stake=BaseUnits(stake),
        session_key=SessionKey(bytes([number if key is None else key]) * 32),
    )


LIST = AuditorList(auditors=(auditor(1), auditor(2, stake=2**95), auditor(9)))


def test_decoded__encoded__is_the_list_under_its_digest() -> None:
    again = AuditorList.decoded(LIST.encoded())

    assert again == LIST
    assert again.digest() == LIST.digest()
    assert again.auditors[0].peer == peer_id(again.auditors[0].session_key)


@pytest.mark.parametrize(
    "other",
    [
        AuditorList(auditors=()),
        AuditorList(auditors=LIST.auditors[:2]),
        AuditorList(auditors=(auditor(1, stake=6), *LIST.auditors[1:])),
        AuditorList(auditors=(auditor(1, key=3), *LIST.auditors[1:])),
    ],
    ids=["empty", "one less", "another stake", "another key"],
)
def test_digest__another_list__is_another(other: AuditorList) -> None:
    assert other.digest() != LIST.digest()


@pytest.mark.parametrize(
    "auditors",
    [
        (auditor(2), auditor(1)),
        (auditor(1), auditor(1, key=2)),
        (auditor(1), auditor(2, key=1)),
        (auditor(1, stake=0),),
    ],
    ids=["descending", "account twice", "key twice", "no stake"],
)
def test_decoded__list_that_nobody_makes__is_malformed(
    auditors: tuple[OutsideAuditor, ...],
) -> None:
    value: Any = {"kind": "auditor_list.v1", "auditors": [each.value() for each in auditors]}

    with pytest.raises(Malformed):
        AuditorList.decoded(encode(value))


def test_decoded__another_version__is_unknown() -> None:
    with pytest.raises(UnknownVersion):
        AuditorList.decoded(encode(LIST.value() | {"kind": "auditor_list.v2"}))


def test_decoded__wide_spelling_of_a_small_stake__is_malformed() -> None:
    value: Any = LIST.value()
    value["auditors"][0]["stake"] = (5).to_bytes(16, "big")

    with pytest.raises(Malformed):
        AuditorList.decoded(encode(value))


def test_decoded__longest_list__fits_and_a_longer_one_is_not_read() -> None:
    widest = auditor(1).model_copy(update={"stake": 2**96 - 1, "device_class": "x" * 64})

    assert len(encode(widest.value())) * MAX_PEERS + 64 < AuditorList.max_bytes
    with pytest.raises(TooLarge):
        AuditorList.decoded(bytes(AuditorList.max_bytes + 1))
