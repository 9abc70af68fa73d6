"""`tallystick wallet`: keystore files, which hold the key of a poster or a provider.

How a verb opens one: with the passphrase that the owner configured, or types. A passphrase is in
TALLYSTICK_PASSPHRASE, in the file that TALLYSTICK_PASSPHRASE_FILE names, or is asked for on a
terminal; never in argv, where every process of the machine could read it. A keystore without one
opens without being asked.

Nothing here takes or shows a secret in argv or on standard output.
"""

import functools
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from eth_account import Account
from pydantic import SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict
from rich.console import RenderableType

from contracts.keys import store
from contracts.keys.files import read_secret, tell_if_exposed
from contracts.keys.store import open_keystore, save_wallet
from contracts.keys.wallet import Wallet
from contracts.settings import expanded
from contracts.terms.amounts import format_tokens
from contracts.terms.errors import Conflict, Forbidden, Malformed, WrongConfiguration
from contracts.terms.ids import ZERO_DIGEST, Address, AddressField
from contracts.terms.typed_names import digits_of
from market.bodies.base import Body
from market.bodies.market import AccountView
from market.bodies.routes import GET_ACCOUNT
from tallystick.cli.options import DryRun, Market, PosterWallet, ask, poster_wallet
from tallystick.cli.output import facts, shows
from tallystick.reading import read_whole

# ------------------------------------------------------------------------------ opening a keystore

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
    text = read_whole(path, MAX_PASSPHRASE_BYTES).decode("utf-8", "surrogateescape")
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


# ------------------------------------------------------------------------------------------- verbs

app = typer.Typer(no_args_is_help=True, help="Make, import and look at a keystore.")

MAX_KEY_BYTES = 64 * 1024
STANDARD_INPUT = Path("-")

NoPassphrase = Annotated[
    bool,
    typer.Option("--no-passphrase", help="Only the file's mode (0600) guards the key."),
]


class Shown(Body):
    """A keystore; `money` where the market was asked."""

    file: str
    account: AddressField
    dry_run: bool
    money: AccountView | None


def _lines(shown: Shown) -> Iterator[RenderableType]:
    rows = {"account": f"0x{shown.account.hex()}", "keystore": shown.file}
    if shown.dry_run:
        rows["written"] = "no: a dry run"
    if (money := shown.money) is not None:
        rows["holds"] = f"{format_tokens(money.token)} tokens, {money.gas} wei"
        rows["in the escrow"] = (
            f"{format_tokens(money.free)} free, {format_tokens(money.bonded)} bonded"
        )
        rows["claimable"] = format_tokens(money.due)
    yield facts("", rows)


@app.command("create")
@shows(Shown, lines=_lines)
def create_command(wallet: PosterWallet = None, no_passphrase: NoPassphrase = False) -> Shown:
    """Make a key and keep it in a new keystore file (0600), under a passphrase.

    The passphrase is asked for, or taken from TALLYSTICK_PASSPHRASE or from the file that
    TALLYSTICK_PASSPHRASE_FILE names. Without it or the file the key is lost: keep copies.

    Example: tallystick wallet create --wallet poster.json
    """
    path = poster_wallet(wallet)
    _refuse_existing(path)
    made = new_wallet()
    save_wallet(path, made, chosen(empty=no_passphrase))
    return Shown(file=str(path), account=made.account, dry_run=False, money=None)


@app.command("show")
@shows(Shown, lines=_lines)
def show_command(
    wallet: PosterWallet = None,
    balance: Annotated[
        bool, typer.Option("--balance", help="Ask the market what the account holds.")
    ] = False,
    market: Market = None,
) -> Shown:
    """Show whose key a keystore holds; one that names its account stays closed.

    Example: tallystick wallet show --balance
    """
    path = poster_wallet(wallet)
    account = account_in(path)
    money = (
        ask(market, lambda client: client.call(GET_ACCOUNT, account=account)) if balance else None
    )
    return Shown(file=str(path), account=account, dry_run=False, money=money)


@app.command("import")
@shows(Shown, lines=_lines)
def import_command(
    source: Annotated[
        Path,
        typer.Argument(
            help="Keystore file of another program, or a file with 64 hexadecimal digits; "
            "- is standard input.",
            metavar="FILE",
        ),
    ],
    wallet: PosterWallet = None,
    no_passphrase: NoPassphrase = False,
    dry_run: DryRun = False,
) -> Shown:
    """Keep a key that you have in a new keystore file (0600).

    A keystore is opened with its passphrase and keeps it; a bare key gets one as by
    `wallet create`. Both come from where `wallet create` takes them.

    Example: tallystick wallet import key.txt --wallet poster.json
    """
    path = poster_wallet(wallet)
    _refuse_existing(path)
    data = _source(source)
    found, passphrase = _found(data, source, empty=no_passphrase)
    if not dry_run:
        save_wallet(path, found, passphrase)
    return Shown(file=str(path), account=found.account, dry_run=dry_run, money=None)


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise Conflict(f"{path} is there already, and a key is never overwritten")


def _source(source: Path) -> bytes:
    if source == STANDARD_INPUT:
        return sys.stdin.buffer.read(MAX_KEY_BYTES)
    data = read_whole(source, MAX_KEY_BYTES)
    tell_if_exposed(source)
    return data


def _found(data: bytes, source: Path, *, empty: bool) -> tuple[Wallet, str]:
    """The key in what was given, and the passphrase to keep it under."""
    if _is_keystore(data):
        return opened(data, str(source))
    try:
        # As for JSON, also UTF-16, which PowerShell writes, and a byte order mark.
        wallet = _bare(digits_of(data.decode(json.detect_encoding(data))))
    except ValueError:  # never with the digits: they may be a key with a slip in it
        raise Malformed(f"{source} holds neither a keystore nor 64 hexadecimal digits") from None
    return wallet, chosen(empty=empty)


def _is_keystore(data: bytes) -> bool:
    try:
        return isinstance(json.loads(data), dict)
    except (ValueError, RecursionError):
        return False


def _bare(digits: str) -> Wallet:
    wallet = Wallet(bytes.fromhex(digits))
    if len(wallet.secret) != 32:
        raise ValueError("a key has 32 bytes")
    wallet.sign_digest(ZERO_DIGEST)  # refuses what is no number of a key on the curve
    return wallet
