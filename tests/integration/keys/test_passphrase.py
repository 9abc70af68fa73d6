"""A keystore with a passphrase: slow to guess on purpose, so it is no unit test."""

from pathlib import Path

import pytest

from contracts.keys.store import load_wallet, save_wallet
from contracts.terms.errors import Forbidden
from tests.support.history import make_wallet


def test_wallet__keystore_with_passphrase__opens_with_it_alone(tmp_path: Path) -> None:
    path, wallet = tmp_path / "wallet.json", make_wallet("x")
    save_wallet(path, wallet, "secret")

    assert load_wallet(path, "secret") == wallet
    for wrong in ("", "Secret"):
        with pytest.raises(Forbidden):
            load_wallet(path, wrong)
