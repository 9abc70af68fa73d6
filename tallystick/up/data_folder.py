"""Where does everything of one machine live, and who may use it now?

One folder, mode 0700, holds it all; nothing outside it is changed. `version` is written first and
names the layout: a newer one is refused. Whoever holds the lock on `run/up.lock` owns the folder;
the kernel drops the lock with its process, so a killed `up` leaves nothing to clean away.
"""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from contracts.disk import lock_file
from contracts.terms import errors
from tallystick.files import replace_file

DATA_VERSION = 1
FOLDERS = ("postgres", "redis", "chain", "blobs", "keys", "run", "logs", "jobs")

_KEPT_LOGS = 3
_MAX_LOG_BYTES = 8 * 2**20
_TAIL_LINES = 12
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)


class DataFolder:
    """Names inside the data folder.

    Attributes:
        home: The folder itself, absolute.
        postgres: Parent of the database cluster.
        redis: Working folder of Redis; it keeps nothing there.
        chain: The embedded chain's state and its deployment.
        blobs: Content-addressed files of the blob store.
        keys: Keystores and passwords, each a file with mode 0600.
        run: What is true only while `up` runs: lock, pids, ports, addresses.
        logs: One log a service.
        jobs: One folder a hosted job.
        ports: Service name to port.
        processes: Name, pid, start time, port, state and log of each service.
        environment: The TALLYSTICK_* variables that the services were given, secrets included.
        up: Who runs `up` here: pid, start time, state.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.postgres = home / "postgres"
        self.redis = home / "redis"
        self.chain = home / "chain"
        self.blobs = home / "blobs"
        self.keys = home / "keys"
        self.run = home / "run"
        self.logs = home / "logs"
        self.jobs = home / "jobs"
        self.ports = self.run / "ports.json"
        self.processes = self.run / "processes.json"
        self.environment = self.run / "environment.json"
        self.up = self.run / "up.json"

    def log(self, name: str) -> Path:
        """The log of one service."""
        return self.logs / f"{name}.log"

    def free_bytes(self) -> int:
        """What may still be written to the disk under the folder."""
        return shutil.disk_usage(self.home).free


@contextlib.contextmanager
def reported(home: Path) -> Iterator[None]:
    """Turn the errors of a file system into ours, naming the folder and a way out.

    Raises:
        Forbidden: no permission, or a read-only file system.
        Unavailable: the disk is full.
        WrongConfiguration: part of the path is no folder, or the path is too long.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL:
            raise disk_full(home) from error
        where = error.filename or home
        if error.errno in _NOT_ALLOWED:
            raise errors.Forbidden(
                f"no permission to write {where} ({error.strerror}); "
                "choose another folder with --home or TALLYSTICK_HOME"
            ) from error
        if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP):
            raise errors.WrongConfiguration(
                f"{where} cannot be a data folder ({error.strerror}); "
                "choose another with --home or TALLYSTICK_HOME"
            ) from error
        raise


def disk_full(home: Path) -> errors.Unavailable:
    """The one error for a disk without room."""
    with contextlib.suppress(OSError):
        megabytes = shutil.disk_usage(home).free // 2**20
        return errors.Unavailable(
            f"the disk under {home} is full ({megabytes} MB left); nothing is lost: "
            "free some space, then run `tallystick up` again",
            free=megabytes * 2**20,
        )
    return errors.Unavailable(f"the disk under {home} is full; free some space and try again")


def open_data_folder(home: Path) -> DataFolder:
    """The data folder at `home`, made on first use; existing folders keep mode and owner.

    Raises:
        UnknownVersion: a newer program made it.
        Malformed: its version is no number.
        Refused: it cannot be written, or it holds something else (see `reported`).
    """
    folder = DataFolder(home.absolute())
    with reported(folder.home):
        folder.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_version(folder)
        for name in FOLDERS:
            (folder.home / name).mkdir(mode=0o700, exist_ok=True)
            _check_writable(folder.home / name)
    return folder


def _check_version(folder: DataFolder) -> None:
    marker = folder.home / "version"
    try:
        text = marker.read_text("ascii", "replace").strip()
    except FileNotFoundError:
        _claim(folder, marker)
        return
    if not text.isdecimal():
        raise errors.Malformed(f"{marker} says {text[:40]!r}, not a number: no data folder of ours")
    if int(text) > DATA_VERSION:
        raise errors.UnknownVersion(
            f"{folder.home} was made by a newer Tallystick (data version {int(text)}, this one "
            f"knows {DATA_VERSION}): upgrade, or choose another folder with --home",
            kind=text,
        )


def _claim(folder: DataFolder, marker: Path) -> None:
    # Keystores may be there first: `tallystick deploy --keys` makes them for another chain.
    others = (name for name in FOLDERS if name != "keys")
    strangers = [name for name in others if (folder.home / name).exists()]
    if strangers:
        raise errors.Refused(
            f"{folder.home} has no version file but holds {', '.join(strangers)}: "
            "it is not ours; choose another folder with --home or TALLYSTICK_HOME"
        )
    replace_file(marker, f"{DATA_VERSION}\n".encode())


def _check_writable(path: Path) -> None:
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def write_json(path: Path, value: Mapping[str, object], *, durable: bool = True) -> None:
    """`files.replace_file` for a JSON object."""
    text = json.dumps(value, indent=1, sort_keys=True) + "\n"
    replace_file(path, text.encode(), durable=durable)


def read_json(path: Path) -> dict[str, object]:
    """The JSON object in `path`; empty where there is none that can be read."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def rotate(log: Path) -> None:
    """Put a log aside that has grown over 8 MiB; three old ones are kept."""
    if not log.exists() or log.stat().st_size < _MAX_LOG_BYTES:
        return
    for number in range(_KEPT_LOGS, 0, -1):
        older = log if number == 1 else log.with_name(f"{log.name}.{number - 1}")
        if older.exists():
            os.replace(older, log.with_name(f"{log.name}.{number}"))


def tail(log: Path, *, since: int = 0) -> str:
    """The last lines of a log, from byte `since` on."""
    try:
        with log.open("rb") as file:
            file.seek(max(since, log.stat().st_size - 16_384))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return "\n".join(lines[-_TAIL_LINES:])


def take_lock(folder: DataFolder) -> int:
    """The right to run services in a data folder, held until this descriptor is closed.

    Raises:
        Conflict: another `up` holds it; data: `pid`.
    """
    path = folder.run / "up.lock"
    with reported(folder.home):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        lock_file(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, path)
    except BlockingIOError as error:
        os.close(descriptor)
        raise _already_running(folder) from error
    return descriptor


def _already_running(folder: DataFolder) -> errors.Conflict:
    pid = _pid_of_holder(folder)
    return errors.Conflict(
        f"Tallystick already runs in {folder.home} as pid {pid if pid else 'unknown'}; "
        f"stop it with `tallystick down --home '{folder.home}'`, or choose another --home",
        pid=pid,
    )


def _pid_of_holder(folder: DataFolder) -> int | None:
    # The holder writes its pid right after it took the lock.
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        pid = read_json(folder.up).get("pid")
        if isinstance(pid, int):
            return pid
        time.sleep(0.01)
    return None
