"""Keys on disk: files that only their owner reads, created once, never overwritten.

Wallets are Ethereum keystore files (Web3 Secret Storage, scrypt), so that other tools open them;
session keys, which live as long as a job, are 32 raw bytes.
"""

import json
import os
import secrets
from pathlib import Path

from eth_account import Account

from contracts.keys.wallet import Session, Wallet
from contracts.terms.errors import Forbidden, Malformed, NotFound, Refused
from contracts.terms.ids import Address

_QUICK_ROUNDS = 2**12  # without a passphrase the file's mode is its only defence
_ROUNDS = 2**17  # a third of a second and 128 MiB for each guess at a passphrase
_MAC_MISMATCH = "MAC mismatch"  # all that eth-account says of another passphrase


def load_or_create_wallet(path: Path, passphrase: str = "") -> Wallet:
    """The wallet in keystore `path`, made on first use.

    Raises:
        Refused: the file cannot be read or written, or the passphrase is wrong.
    """
    if not path.exists():
        save_wallet(path, Wallet(_new_secret()), passphrase)
    return load_wallet(path, passphrase)


def save_wallet(path: Path, wallet: Wallet, passphrase: str = "") -> None:
    """Write a new keystore file, mode 0600.

    Raises:
        Refused: it exists already, or the folder is not writable.
    """
    rounds = _ROUNDS if passphrase else _QUICK_ROUNDS
    sealed = Account.encrypt(wallet.secret, passphrase, iterations=rounds)
    _create(path, json.dumps(sealed).encode())


def load_wallet(path: Path, passphrase: str = "") -> Wallet:
    """The wallet in keystore `path`.

    Raises:
        NotFound: there is no such file.
        Malformed: no keystore file.
        Forbidden: another passphrase.
    """
    return open_keystore(_read(path), passphrase, what=str(path))


def open_keystore(data: bytes, passphrase: str, *, what: str) -> Wallet:
    """The wallet in the bytes of a keystore file; raises as `load_wallet`."""
    try:
        return Wallet(bytes(Account.decrypt(data.decode(), passphrase)))
    except (ValueError, KeyError, TypeError, NotImplementedError) as error:
        if str(error) == _MAC_MISMATCH:
            raise Forbidden(f"{what}: another passphrase") from error
        raise Malformed(f"{what}: no keystore file ({error})") from error


def account_in(path: Path) -> Address:
    """The account that a keystore file names; nothing is opened, so no passphrase is needed.

    Raises:
        NotFound: there is no such file.
        Malformed: no keystore file, or one that names no account.
    """
    try:
        account = bytes.fromhex(json.loads(_read(path))["address"].removeprefix("0x"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Malformed(f"{path}: no keystore file that names its account") from error
    if len(account) != 20:
        raise Malformed(f"{path}: an account has 20 bytes, this one has {len(account)}")
    return Address(account)


def load_or_create_session(path: Path) -> Session:
    """The session key in `path`, made on first use."""
    if not path.exists():
        _create(path, secrets.token_bytes(32))
    secret = _read(path)
    if len(secret) != 32:
        raise Malformed(f"{path}: a session key has 32 bytes, this file has {len(secret)}")
    return Session(secret)


def _new_secret() -> bytes:
    return bytes(Account.create(secrets.token_hex(32)).key)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise NotFound(f"no key file {path}") from error
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}") from error


def _create(path: Path, data: bytes) -> None:
    """Write a file that appears whole or not at all, and never replaces another."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError as error:
        raise Refused(f"{path} exists already and is never overwritten") from error
    except OSError as error:
        raise Refused(f"cannot write {path}: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)
