"""`tallystick wallet`: keystore files, which hold the key of a poster or a provider.

Nothing here takes or shows a secret in argv or on standard output.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import RenderableType

from contracts.keys.files import tell_if_exposed
from contracts.keys.store import save_wallet
from contracts.keys.wallet import Wallet
from contracts.terms.amounts import format_tokens
from contracts.terms.errors import Conflict, Malformed
from contracts.terms.ids import ZERO_DIGEST, AddressField
from contracts.terms.typed_names import digits_of
from market.bodies.base import Body
from market.bodies.market import AccountView
from market.bodies.routes import GET_ACCOUNT
from tallystick.cli.files import read
from tallystick.cli.keystore import account_in, chosen, new_wallet, opened
from tallystick.cli.options import DryRun, Market, ask
from tallystick.cli.output import facts, shows
from tallystick.sdk.folders import HomeSettings

app = typer.Typer(no_args_is_help=True, help="Make, import and look at a keystore.")

MAX_KEY_BYTES = 64 * 1024
STANDARD_INPUT = Path("-")

Keystore = Annotated[
    Path | None, typer.Option("--wallet", help="Keystore file. Default: HOME/poster.json.")
]
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
        rows["stake"] = format_tokens(money.stake.active)
        rows["claimable"] = format_tokens(money.claimable)
    yield facts("", rows)


def _path(wallet: Path | None) -> Path:
    return wallet or HomeSettings().home / "poster.json"


@app.command("create")
@shows(Shown, lines=_lines)
def create_command(wallet: Keystore = None, no_passphrase: NoPassphrase = False) -> Shown:
    """Make a key and keep it in a new keystore file (0600), under a passphrase.

    The passphrase is asked for, or taken from TALLYSTICK_PASSPHRASE or from the file that
    TALLYSTICK_PASSPHRASE_FILE names. Without it or the file the key is lost: keep copies.

    Example: tallystick wallet create --wallet poster.json
    """
    path = _path(wallet)
    _refuse_existing(path)
    made = new_wallet()
    save_wallet(path, made, chosen(empty=no_passphrase))
    return Shown(file=str(path), account=made.account, dry_run=False, money=None)


@app.command("show")
@shows(Shown, lines=_lines)
def show_command(
    wallet: Keystore = None,
    balance: Annotated[
        bool, typer.Option("--balance", help="Ask the market what the account holds.")
    ] = False,
    market: Market = None,
) -> Shown:
    """Show whose key a keystore holds; one that names its account stays closed.

    Example: tallystick wallet show --balance
    """
    path = _path(wallet)
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
    wallet: Keystore = None,
    no_passphrase: NoPassphrase = False,
    dry_run: DryRun = False,
) -> Shown:
    """Keep a key that you have in a new keystore file (0600).

    A keystore is opened with its passphrase and keeps it; a bare key gets one as by
    `wallet create`. Both come from where `wallet create` takes them.

    Example: tallystick wallet import key.txt --wallet poster.json
    """
    path = _path(wallet)
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
    data = read(source, MAX_KEY_BYTES)
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
