"""What is in the files of keys?

Wallets are Ethereum keystore files (Web3 Secret Storage, scrypt), so that other tools open them;
session keys, which live as long as a job, are 32 raw bytes.
"""

import json
import secrets
from collections.abc import Callable
from pathlib import Path

from eth_account import Account

from contracts.keys.files import create_secret, read_secret
from contracts.keys.wallet import Session, Wallet
from contracts.terms.errors import Forbidden, Malformed
from contracts.terms.ids import Address
from contracts.terms.typed_names import parse_address

_QUICK_ROUNDS = 2**12  # without a passphrase the file's mode is its only defence
_ROUNDS = 2**17  # a third of a second and 128 MiB for each guess at a passphrase
_MAC_MISMATCH = "MAC mismatch"  # all that eth-account says of another passphrase


def load_or_create_wallet(path: Path) -> Wallet:
    """The wallet in keystore `path`, made on first use, without a passphrase.

    Raises:
        Refused: the file cannot be read or written, or has a passphrase.
    """
    if not path.exists():
        save_wallet(path, Wallet(_new_secret()))
    return load_wallet(path)


def save_wallet(path: Path, wallet: Wallet, passphrase: str = "") -> None:
    """Write a new keystore file, mode 0600.

    Raises:
        Refused: it exists already, or the folder is not writable.
    """
    rounds = _ROUNDS if passphrase else _QUICK_ROUNDS
    sealed = Account.encrypt(wallet.secret, passphrase, iterations=rounds)
    create_secret(path, json.dumps(sealed).encode())


def load_wallet(path: Path, passphrase: str = "") -> Wallet:
    """The wallet in keystore `path`.

    Raises:
        NotFound: there is no such file.
        Malformed: no keystore file.
        Forbidden: another passphrase.
    """
    return open_keystore(read_secret(path), passphrase, what=str(path))


def open_keystore(data: bytes, passphrase: str, *, what: str) -> Wallet:
    """The wallet in the bytes of a keystore file; raises as `load_wallet`."""
    try:
        kept = json.loads(data)
        wallet = Wallet(bytes(Account.decrypt(kept, passphrase)))
    except (ValueError, KeyError, TypeError, NotImplementedError, RecursionError) as error:
        if str(error) == _MAC_MISMATCH:
            raise Forbidden(f"{what}: another passphrase") from error
        raise Malformed(f"{what}: no keystore file ({error})") from error
    if _account_named(kept, what) not in (None, wallet.account):
        raise Malformed(f"{what} names another account than that of its key")
    return wallet


def account_in(path: Path, opened: Callable[[Path], Wallet] = load_wallet) -> Address:
    """The account of a keystore file: the one it names, else that of the key in it.

    A name is optional in the format: Foundry and MyEtherWallet write none.

    Args:
        path: Of the keystore.
        opened: Opens one that names no account; raises as `load_wallet`.

    Raises:
        NotFound: there is no such file.
        Malformed: no keystore file.
    """
    try:
        kept = json.loads(read_secret(path))
    except (ValueError, RecursionError) as error:
        raise Malformed(f"{path}: no keystore file ({error})") from error
    return _account_named(kept, str(path)) or opened(path).account


def _account_named(kept: object, what: str) -> Address | None:
    named = kept.get("address") if isinstance(kept, dict) else None
    return parse_address(str(named), f"account in {what}") if named else None


def load_or_create_session(path: Path) -> Session:
    """The session key in `path`, made on first use."""
    if not path.exists():
        create_secret(path, secrets.token_bytes(32))
    secret = read_secret(path)
    if len(secret) != 32:
        raise Malformed(f"{path}: a session key has 32 bytes, this file has {len(secret)}")
    return Session(secret)


def _new_secret() -> bytes:
    return bytes(Account.create(secrets.token_hex(32)).key)
