"""Keys on disk and in memory."""

import json
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account
from eth_utils.address import to_checksum_address

from contracts.keys.store import account_in, load_or_create_session, load_wallet, save_wallet
from contracts.keys.wallet import Wallet
from contracts.terms.digest import keccak
from contracts.terms.errors import Forbidden, Malformed, NotFound, Refused
from contracts.terms.signatures import recover
from tests.support.history import make_session, make_wallet


def test_wallet__text_form__does_not_show_the_secret() -> None:
    for key in (make_wallet("x"), make_session("x")):
        assert key.secret.hex() not in repr(key)


def test_wallet__known_secret__has_the_known_account() -> None:
    wallet = Wallet((1).to_bytes(32, "big"))

    assert wallet.account.hex() == "7e5f4552091a69125d5dfcb7b8c2659029395bdf"
    assert recover(keccak(b"x"), wallet.sign_digest(keccak(b"x"))) == wallet.account


def test_session__loaded_again__is_the_same_key(tmp_path: Path) -> None:
    first = load_or_create_session(tmp_path / "keys" / "session")

    assert load_or_create_session(tmp_path / "keys" / "session") == first
    assert (tmp_path / "keys" / "session").stat().st_mode & 0o777 == 0o600


def test_session__file_of_another_length_or_a_folder__is_refused(tmp_path: Path) -> None:
    (tmp_path / "session").write_bytes(b"short")

    with pytest.raises(Malformed):
        load_or_create_session(tmp_path / "session")
    with pytest.raises(Refused):
        load_or_create_session(tmp_path)


def test_wallet__keystore__opens_again_and_is_never_overwritten(tmp_path: Path) -> None:
    path, wallet = tmp_path / "wallet.json", make_wallet("x")
    save_wallet(path, wallet)

    with pytest.raises(Refused):
        save_wallet(path, make_wallet("other"))
    with pytest.raises(NotFound):
        load_wallet(tmp_path / "missing.json")
    assert load_wallet(path) == wallet
    assert path.stat().st_mode & 0o777 == 0o600


def test_wallet__another_passphrase__is_forbidden_and_its_account_is_known(tmp_path: Path) -> None:
    path, wallet = tmp_path / "wallet.json", make_wallet("x")
    save_wallet(path, wallet)

    with pytest.raises(Forbidden):
        load_wallet(path, "another")
    assert account_in(path) == wallet.account


@pytest.mark.parametrize("written", [None, "", "checksummed", "0X"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le"])
def test_keystore__of_another_program__is_read(
    written: str | None, encoding: str, tmp_path: Path
) -> None:
    path, wallet = tmp_path / "wallet.json", make_wallet("x")
    names = {"checksummed": to_checksum_address(wallet.account), "0X": f"0X{wallet.account.hex()}"}
    kept = {**keystore_of(wallet), "address": names.get(written or "", written)}
    path.write_bytes(json.dumps(kept).encode(encoding))

    assert account_in(path) == load_wallet(path).account == wallet.account


def test_keystore__naming_another_account__is_malformed(tmp_path: Path) -> None:
    kept = {**keystore_of(make_wallet("x")), "address": make_wallet("y").account.hex()}
    (tmp_path / "wallet.json").write_text(json.dumps(kept))

    with pytest.raises(Malformed, match="another account"):
        load_wallet(tmp_path / "wallet.json")


def keystore_of(wallet: Wallet) -> dict[str, Any]:
    """A keystore as other programs write it."""
    return dict(Account.encrypt(wallet.secret, "", iterations=2))


@pytest.mark.parametrize(
    "text", ["{}", "[]", "\xff", "[" * 9999, '{"address": "0xab"}', '{"address": 7}']
)
def test_account__in_another_file__is_malformed(text: str, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_bytes(text.encode("latin-1"))

    for read in (account_in, load_wallet):
        with pytest.raises(Malformed):
            read(tmp_path / "other.json")
