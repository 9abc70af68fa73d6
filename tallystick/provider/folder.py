"""What a provider keeps on disk, and one agent at a time.

`wallet.json` (the owner), `agent.key` (signs heartbeats), `offer.msgpack` (the offer that stands),
`withdrawn` (the offer that its owner took back while it stood), `audit.key` (signs reports as an
outside auditor), `agent.lock` (the agent's pid), `transactions-CHAIN.db` (what was sent),
`leases/<id>/` (one folder a lease, with the session key and the signed LeaseAccept that were stored
before they left, the job's `coins`, and `upload` while weights go up), `audits/<job>/` (a job that
may draw us from outside, with the LeaseAccept that reserves our stake for it, its `coins` and our
reports). All mode 0600. On another chain what is kept of the last one goes to `chains/<name>/`
(`tallystick.chains`).
"""

import contextlib
import fcntl
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from contracts.disk import lock_file
from contracts.keys.store import load_or_create_session
from contracts.keys.wallet import Session
from contracts.terms.errors import Conflict, Malformed, Refused, Unavailable
from contracts.terms.ids import Digest, JobId
from contracts.terms.messages import LeaseAccept, Message, Offer
from contracts.terms.signatures import Signed, decode_signed, expect
from tallystick.files import replace_file
from tallystick.provider.machine import check_class

T = TypeVar("T")
KEPT_OF_CHAIN = ("offer.msgpack", "withdrawn", "leases", "audits")
"""What of a home holds on one chain alone, beside what was sent; on another it is put aside."""
_UPLOAD = "upload"

DRAIN_SIGNAL = signal.SIGUSR1
"""Tells an agent to let its peers leave and to end; SIGTERM does, too, and twice ends them."""


@dataclass(frozen=True)
class PeerFile:
    """What a peer process is told: `lease.json` in its folder."""

    market: str
    job: str
    lease: str
    threads: int
    bandwidth: int  # bytes per second
    disk: int  # bytes that the folder may take


@dataclass(frozen=True)
class AuditFile:
    """What an auditor's process is told: `audit.json` in its folder."""

    market: str
    job: str
    threads: int


class ProviderFolder:
    """A provider's home; holding it open is holding its lock.

    Raises:
        Conflict: another agent holds it.
        Refused: it cannot be written.
    """

    def __init__(self, home: Path) -> None:
        self.home = home.resolve()
        try:
            self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(self.home / "agent.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise Refused(f"cannot write {self.home}: {error.strerror}") from error
        try:
            lock_file(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB, self.home / "agent.lock")
        except BlockingIOError as error:
            holder = os.read(self._lock, 32).decode() or "?"
            os.close(self._lock)
            raise Conflict(
                f"an agent with pid {holder} already uses {self.home}; choose another --home"
            ) from error
        try:
            os.ftruncate(self._lock, 0)
            os.write(self._lock, str(os.getpid()).encode())
        except OSError as error:
            os.close(self._lock)
            raise Refused(f"cannot write {self.home}: {error.strerror}") from error

    def close(self) -> None:
        """Give the lock back."""
        os.close(self._lock)

    def agent_session(self) -> Session:
        """The agent's session key, made on first use."""
        return load_or_create_session(self.home / "agent.key")

    def audit_session(self) -> Session:
        """The key that signs reports as an outside auditor, made on first use."""
        return load_or_create_session(self.home / "audit.key")

    def audit(self, job: JobId) -> Path:
        """Folder of a job that may draw us from outside, or asks for it, made on first use."""
        folder = self.home / "audits" / job.hex()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder

    def offer(self) -> Signed[Offer] | None:
        """The offer that was stored last."""
        signed = _load(self.home / "offer.msgpack")
        return None if signed is None else expect(signed, Offer)

    def save_offer(self, offer: Signed[Offer]) -> None:
        """Store an offer before it leaves."""
        write_durably(self.home / "offer.msgpack", offer.encoded())

    def is_withdrawn(self, offer: Signed[Offer]) -> bool:
        """Whether its owner took this offer back; an agent that starts makes a new one."""
        try:
            return (self.home / "withdrawn").read_bytes() == offer.message.digest()
        except FileNotFoundError:
            return False

    def lease(self, lease: Digest) -> Path:
        """Folder of a lease, made on first use."""
        folder = self.home / "leases" / lease.hex()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder

    def log(self, lease: Digest) -> Path:
        """Log of a lease's peer."""
        return self._logs() / f"peer-{lease.hex()[:12]}.log"

    def audit_log(self, job: JobId) -> Path:
        """Log of the process that audits a job from outside."""
        return self._logs() / f"audit-{job.hex()[:12]}.log"

    def _logs(self) -> Path:
        folder = self.home / "logs"
        folder.mkdir(exist_ok=True, mode=0o700)
        return folder


def keystore_in(home: Path) -> Path:
    """The owner's keystore."""
    return home / "wallet.json"


def agent_pid(home: Path) -> int | None:
    """The process that holds a provider's folder now; nothing is written.

    Raises:
        Unavailable: somebody holds it whom this machine does not show.
    """
    lock = home / "agent.lock"
    try:
        with lock.open() as file:
            try:
                # Shared, and for an instant: only an agent that starts in it would mind.
                lock_file(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB, lock)
            except BlockingIOError:
                said = file.read(32)
            else:
                return None
    except (FileNotFoundError, NotADirectoryError):
        return None
    # The pid was written by who held it before if its successor has only just come.
    if said.isdecimal() and _has_open(int(said), lock):
        return int(said)
    raise Unavailable(f"{home} is in use, and by whom cannot be told now")


def _has_open(pid: int, path: Path) -> bool:
    with contextlib.suppress(OSError):
        return any(each.samefile(path) for each in Path(f"/proc/{pid}/fd").iterdir())
    return False


def stored_offer(home: Path) -> tuple[Signed[Offer], Session] | None:
    """The offer that was stored last and the key that speaks for it, whoever holds the folder."""
    signed = _load(home / "offer.msgpack")
    if signed is None:
        return None
    return expect(signed, Offer), load_or_create_session(home / "agent.key")


def note_withdrawn(home: Path, offer: Signed[Offer]) -> None:
    """Note that its owner took an offer back."""
    write_durably(home / "withdrawn", offer.message.digest())


def leases_in(home: Path) -> list[Digest]:
    """All leases that a provider ever had, the newest first."""
    folders = sorted((home / "leases").glob("*"), key=lambda each: each.stat().st_mtime)
    return [Digest(bytes.fromhex(each.name)) for each in reversed(folders)]


def check_promise(folder: Path, own: str) -> None:
    """Refuse to go on with a lease that was accepted as another device class than our own.

    It was accepted by another machine with this home, or before torch was upgraded.

    Raises:
        WrongConfiguration: it was.
    """
    accept = load_accept(folder)
    if accept is not None:
        check_class(expect(accept, LeaseAccept).message.device_class, own)


def load_accept(folder: Path) -> Signed[Message] | None:
    """The LeaseAccept that was stored in the folder of a lease, or of a job to audit."""
    return _load(folder / "accept.msgpack")


def save_accept(folder: Path, accept: Signed[Message]) -> None:
    """Store a LeaseAccept before it leaves."""
    write_durably(folder / "accept.msgpack", accept.encoded())


def save_peer_file(folder: Path, peer: PeerFile) -> None:
    """Write what the peer process is told."""
    write_durably(folder / "lease.json", json.dumps(asdict(peer)).encode())


def load_peer_file(folder: Path) -> PeerFile:
    """Read what the agent wrote.

    Raises:
        Malformed: not such a file.
    """
    return _read_json_as(folder / "lease.json", PeerFile)


def note_upload(folder: Path) -> None:
    """Say that weights are on their way from the lease in `folder`, and go on."""
    with contextlib.suppress(OSError):  # it only asks for time
        (folder / _UPLOAD).touch()


def end_upload(folder: Path) -> None:
    """Say that nothing is uploaded any more."""
    with contextlib.suppress(OSError):
        (folder / _UPLOAD).unlink(missing_ok=True)


def last_upload(folder: Path) -> float | None:
    """Seconds since `note_upload`; None: nothing is uploaded."""
    try:
        return time.time() - (folder / _UPLOAD).stat().st_mtime
    except OSError:
        return None


def save_audit_file(folder: Path, audit: AuditFile) -> None:
    """Write what the auditor's process is told."""
    write_durably(folder / "audit.json", json.dumps(asdict(audit)).encode())


def load_audit_file(folder: Path) -> AuditFile:
    """Read what the agent wrote; raises as `load_peer_file`."""
    return _read_json_as(folder / "audit.json", AuditFile)


def _read_json_as(path: Path, kind: Callable[..., T]) -> T:
    try:
        return kind(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise Malformed(f"{path} cannot be read: {error}") from error


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file whole, mode 0600, on disk when this returns.

    Raises:
        Unavailable: the disk is full or cannot be written; the file is as it was.
    """
    try:
        replace_file(path, data)
    except OSError as error:
        raise Unavailable(f"cannot write {path}: {error.strerror}") from error


def _load(path: Path) -> Signed[Message] | None:
    try:
        return decode_signed(path.read_bytes())
    except FileNotFoundError:
        return None
    except Refused as error:
        raise Malformed(f"{path} is damaged: {error}") from error
