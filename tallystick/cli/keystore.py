"""How a verb opens a keystore: with the passphrase that the owner configured, or types.

A passphrase is in TALLYSTICK_PASSPHRASE, in the file that TALLYSTICK_PASSPHRASE_FILE names, or is
asked for on a terminal; never in argv, where every process of the machine could read it. A keystore
without one opens without being asked.
"""

import functools
import re
import sys
from pathlib import Path

import typer
from eth_account import Account
from pydantic import SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from contracts.keys import store
from contracts.keys.files import read_secret, tell_if_exposed
from contracts.keys.store import open_keystore, save_wallet
from contracts.keys.wallet import Wallet
from contracts.settings import expanded
from contracts.terms.errors import Forbidden, WrongConfiguration
from contracts.terms.ids import Address
from tallystick.cli.files import read

MAX_PASSPHRASE_BYTES = 4096
_NO_TEXT = re.compile("[\0\r\ud800-\udfff]")  # of bytes that are no UTF-8 come surrogates
HOW = "set TALLYSTICK_PASSPHRASE or TALLYSTICK_PASSPHRASE_FILE, or run it on a terminal"


class PassphraseSettings(BaseSettings):
    """Where the passphrase of keystores is."""

    # Set and empty is refused, not ignored: a key would be kept without the passphrase meant.
    model_config = SettingsConfigDict(
        env_prefix="TALLYSTICK_", env_ignore_empty=False, frozen=True, extra="ignore"
    )

    passphrase: SecretStr | None = None
    passphrase_file: str | None = None
    """Its first line."""


def configured() -> str | None:
    """The passphrase that the environment gives; None: none.

    Raises:
        WrongConfiguration: the place that it names holds none.
    """
    settings = PassphraseSettings()
    if settings.passphrase is not None:
        return _usable(settings.passphrase.get_secret_value(), "TALLYSTICK_PASSPHRASE")
    if settings.passphrase_file is None:
        return None
    if not settings.passphrase_file:
        raise _unusable("TALLYSTICK_PASSPHRASE_FILE", "is set and empty")
    path = expanded(Path(settings.passphrase_file))
    text = read(path, MAX_PASSPHRASE_BYTES).decode("utf-8", "surrogateescape")
    tell_if_exposed(path)
    return _usable(text.partition("\n")[0].removesuffix("\r"), str(path))


def _usable(text: str, where: str) -> str:
    """A passphrase without a byte order mark, which is an editor's and no part of it."""
    text = text.removeprefix("\ufeff")
    if not text.strip():
        raise _unusable(where, "has a blank first line")
    if _NO_TEXT.search(text):
        raise _unusable(where, "is no UTF-8 text")
    return text


def _unusable(where: str, why: str) -> WrongConfiguration:
    return WrongConfiguration(
        f"{where} {why}, so the passphrase is not known: put it there, or unset the variable"
    )


def chosen(*, empty: bool = False) -> str:
    """The passphrase of a new keystore.

    Args:
        empty: The owner wants none.

    Raises:
        WrongConfiguration: there is none, and nobody who could be asked.
    """
    if empty:
        return ""
    if (found := configured()) is not None:
        return found
    if not is_terminal():
        raise WrongConfiguration(f"no passphrase for the new keystore: {HOW}; or --no-passphrase")
    typed: str = typer.prompt("Passphrase", hide_input=True, confirmation_prompt=True, err=True)
    return typed


def open_wallet(path: Path) -> Wallet:
    """The wallet in a keystore file.

    Raises:
        NotFound, Malformed: as `load_wallet`.
        Forbidden: another passphrase.
    """
    return opened(read_secret(path), str(path))[0]


def opened(data: bytes, what: str) -> tuple[Wallet, str]:
    """The wallet in the bytes of a keystore file, and its passphrase; raises as `open_wallet`."""
    for passphrase in dict.fromkeys((configured() or "", "")):
        try:
            return open_keystore(data, passphrase, what=what), passphrase
        except Forbidden:
            continue
    if not is_terminal():
        raise Forbidden(f"{what} does not open: {HOW}")
    typed = _asked(what)
    return open_keystore(data, typed, what=what), typed


@functools.cache  # a command that opens it twice asks once
def _asked(what: str) -> str:
    typed: str = typer.prompt(f"Passphrase of {what}", hide_input=True, err=True)
    return typed


def account_in(path: Path) -> Address:
    """The account of a keystore file, which is opened only if it names none."""
    return store.account_in(path, open_wallet)


def open_or_create(path: Path) -> Wallet:
    """The wallet in a keystore file, made on first use under the configured passphrase, or none."""
    if not path.exists():
        save_wallet(path, new_wallet(), configured() or "")
    return open_wallet(path)


def new_wallet() -> Wallet:
    """A wallet of fresh randomness, on no disk."""
    return Wallet(bytes(Account.create().key))


def is_terminal() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()
