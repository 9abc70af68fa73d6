"""How a verb opens a keystore: with the passphrase that the owner configured, or types.

A passphrase is in TALLYSTICK_PASSPHRASE, in the file that TALLYSTICK_PASSPHRASE_FILE names, or is
asked for on a terminal; never in argv, where every process of the machine could read it. A keystore
without one opens without being asked.
"""

import sys
from pathlib import Path

import typer
from eth_account import Account
from pydantic import SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from contracts.keys.store import load_wallet, save_wallet
from contracts.keys.wallet import Wallet
from contracts.terms.errors import Forbidden, WrongConfiguration
from tallystick.cli.files import read

MAX_PASSPHRASE_BYTES = 4096
HOW = "set TALLYSTICK_PASSPHRASE or TALLYSTICK_PASSPHRASE_FILE, or run it on a terminal"


class PassphraseSettings(BaseSettings):
    """Where the passphrase of keystores is."""

    model_config = SettingsConfigDict(env_prefix="TALLYSTICK_", frozen=True, extra="ignore")

    passphrase: SecretStr | None = None
    passphrase_file: Path | None = None
    """Its first line."""


def configured() -> str | None:
    """The passphrase that the environment gives; None: none."""
    settings = PassphraseSettings()
    if settings.passphrase is not None:
        return settings.passphrase.get_secret_value()
    if settings.passphrase_file is not None:
        text = read(settings.passphrase_file, MAX_PASSPHRASE_BYTES).decode("utf-8", "replace")
        return text.partition("\n")[0].rstrip("\r")
    return None


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
    for passphrase in dict.fromkeys((configured() or "", "")):
        try:
            return load_wallet(path, passphrase)
        except Forbidden:
            continue
    if not is_terminal():
        raise Forbidden(f"{path} does not open: {HOW}")
    return load_wallet(path, typer.prompt(f"Passphrase of {path}", hide_input=True, err=True))


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
