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
from contracts.terms.errors import Malformed, NotFound, Refused

_SCRYPT_ROUNDS = 2**12  # the file's mode is its first defence; the passphrase is often empty


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
    sealed = Account.encrypt(wallet.secret, passphrase, iterations=_SCRYPT_ROUNDS)
    _create(path, json.dumps(sealed).encode())


def load_wallet(path: Path, passphrase: str = "") -> Wallet:
    """The wallet in keystore `path`.

    Raises:
        NotFound: there is no such file.
        Malformed: no keystore file, or another passphrase.
    """
    try:
        return Wallet(bytes(Account.decrypt(_read(path).decode(), passphrase)))
    except (ValueError, KeyError, TypeError, NotImplementedError) as error:
        raise Malformed(f"{path}: no keystore file, or another passphrase ({error})") from error


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
