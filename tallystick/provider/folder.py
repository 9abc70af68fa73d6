"""What a provider keeps on disk, and one agent at a time.

`wallet.json` (the owner), `agent.key` (signs heartbeats), `offer.msgpack` (the offer that stands),
`withdrawn` (the offer that its owner took back while it stood), `audit.key` (signs reports as an
outside auditor), `agent.lock` (the agent's pid), `transactions-CHAIN.db` (what was sent),
`network.json` (where the contracts are), `leases/<id>/` (one folder a lease, with session key,
signed LeaseAccept and Bond that were stored before they left, the job's `beacons`, and `upload`
while weights go up), `audits/<job>/` (a job that may draw us from outside, with the Bond behind our
reports, its `beacons` and the reports). Both kinds of folder hold what the job's money needs and no
market: the signed JobSpec, the newest seal with all pay (`pay.bin`), the Quit that we signed, and
`settled` once nothing of ours is there any more. All mode 0600. On another chain what is kept of
the last one goes to `chains/<name>/` (`tallystick.chains`).
"""

import contextlib
import fcntl
import json
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from contracts.disk import lock_file
from contracts.governance.claims import SealedPay, decode_sealed_pay
from contracts.keys.store import load_or_create_session
from contracts.keys.wallet import Session
from contracts.terms.errors import Conflict, Malformed, Refused, Unavailable
from contracts.terms.escrow_messages import Bond, Quit
from contracts.terms.ids import Address, Digest, JobId
from contracts.terms.messages import JobSpec, LeaseAccept, Message, Offer
from contracts.terms.signatures import Signed, decode_signed, expect
from tallystick.files import replace_file
from tallystick.provider.machine import check_class
from training.worker.store import PAY_FILE

T = TypeVar("T")
M = TypeVar("M", bound=Message)
KEPT_OF_CHAIN = ("offer.msgpack", "withdrawn", "leases", "audits")
"""What of a home holds on one chain alone, beside what was sent; on another it is put aside."""
_IN_BETWEEN_SECONDS = 1.0
"""How long a lock may name nobody who holds it: its agent ends, or has only just come."""
_UPLOAD = "upload"
_SETTLED = "settled"
_NAMES: dict[type[Message], str] = {
    Offer: "offer",
    JobSpec: "job",
    LeaseAccept: "accept",
    Bond: "bond",
    Quit: "quit",
}
"""Of files with a signed message, in the home, or the folder of a lease or of a job to audit."""

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
    device_class: str  # that the bond was signed for


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

    def audit_session(self) -> Session:
        """The key that signs reports as an outside auditor, made on first use."""
        return load_or_create_session(self.home / "audit.key")

    def audit(self, job: JobId) -> Path:
        """Folder of a job that may draw us from outside, or asks for it, made on first use."""
        folder = self.home / "audits" / job.hex()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder

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
    asks_until = time.monotonic() + _IN_BETWEEN_SECONDS
    while True:
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
        if said.isdecimal() and _has_open(int(said), lock):
            return int(said)
        # Its holder is ending, or has not written its pid yet; of neither does a lock give notice.
        if time.monotonic() > asks_until:
            raise Unavailable(f"{home} is in use, and by whom cannot be told now")
        time.sleep(0.01)


def _has_open(pid: int, path: Path) -> bool:
    with contextlib.suppress(OSError):
        return any(each.samefile(path) for each in Path(f"/proc/{pid}/fd").iterdir())
    return False


def agent_session(home: Path) -> Session:
    """The key that speaks for the offer of a home, whoever holds its folder."""
    return load_or_create_session(home / "agent.key")


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
    accept = load_signed(folder, LeaseAccept)
    if accept is not None:
        check_class(accept.message.device_class, own)


def save_signed(folder: Path, signed: Signed[M]) -> None:
    """Store a JobSpec, or what is ours before it leaves."""
    write_durably(folder / f"{_NAMES[type(signed.message)]}.msgpack", signed.encoded())


def load_signed(folder: Path, kind: type[M]) -> Signed[M] | None:
    """The message of this kind that was stored last."""
    path = folder / f"{_NAMES[kind]}.msgpack"
    try:
        return expect(decode_signed(path.read_bytes()), kind)
    except FileNotFoundError:
        return None
    except Refused as error:
        raise Malformed(f"{path} is damaged: {error}") from error


def quits_until(home: Path, job: JobId) -> int:
    """Until when a Quit of ours counts in a job, in Unix seconds; 0: we have signed none."""
    found = 0
    for path in sorted(home.glob(f"*/*/{_NAMES[Quit]}.msgpack")):
        signed = load_signed(path.parent, Quit)
        if signed is not None and signed.message.job == job:
            found = max(found, signed.message.by)
    return found


def save_pay(folder: Path, pay: SealedPay) -> None:
    """Store what the market shows of a job that no process of ours follows."""
    write_durably(folder / PAY_FILE, pay.encoded())


def load_pay(folder: Path) -> SealedPay | None:
    """The newest seal of a job and all of its pay, as the process that works there wrote it.

    Raises:
        Malformed: the file is damaged.
    """
    try:
        return decode_sealed_pay((folder / PAY_FILE).read_bytes())
    except FileNotFoundError:
        return None
    except Refused as error:
        raise Malformed(f"{folder / PAY_FILE} is damaged: {error}") from error


def note_settled(folder: Path) -> None:
    """Note that neither stake nor pay of ours is in the job of a folder any more."""
    write_durably(folder / _SETTLED, b"")


def note_working(folder: Path) -> None:
    """Note that there will be pay of ours in the job of a folder, which may have been settled."""
    (folder / _SETTLED).unlink(missing_ok=True)


def is_settled(folder: Path) -> bool:
    """See `note_settled`."""
    return (folder / _SETTLED).exists()


@dataclass(frozen=True)
class OwnJob:
    """A job that this provider had to do with, and its folders: of leases, or of audits."""

    job: JobId
    spec: JobSpec
    folders: tuple[Path, ...]

    def pay(self, account: Address) -> SealedPay | None:
        """The best pay for an account in any of its folders, the newest of the best.

        Any seal pays, and not all in these folders were checked. None: there is none, or it is
        damaged.
        """
        found = list[SealedPay]()
        for folder in self.folders:
            with contextlib.suppress(Malformed):  # the next seal, or the market's, takes its place
                if (pay := load_pay(folder)) is not None:
                    found.append(pay)

        def worth(pay: SealedPay) -> tuple[int, int, int]:
            ours = [(leaf.vested, leaf.earned) for leaf in pay.pay if leaf.account == account]
            return *(ours[0] if ours else (0, 0)), pay.seal.message.step

        return max(found, key=worth, default=None)


def jobs_in(home: Path, *, unsettled: bool = False) -> list[OwnJob]:
    """The jobs whose spec a provider keeps; `unsettled`: in which there may be money of ours."""
    specs, folders = dict[JobId, JobSpec](), defaultdict[JobId, list[Path]](list)
    for folder in sorted((*(home / "leases").glob("*"), *(home / "audits").glob("*"))):
        if unsettled and is_settled(folder):
            continue
        if (signed := load_signed(folder, JobSpec)) is not None:
            job = signed.message.job()
            specs[job] = signed.message
            folders[job].append(folder)
    return [OwnJob(job, spec, tuple(folders[job])) for job, spec in specs.items()]


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
