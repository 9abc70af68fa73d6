"""Is this machine fit for `up`? One row a check: wanted, found, remedy.

Looks only; changes nothing and starts no service. A check that an outside server makes needless
asks that server instead.
"""

import asyncio
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Coroutine
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from pydantic import SecretStr

from contracts.terms.errors import TallystickError
from market.bodies.base import Body
from tallystick.resources import Resources
from tallystick.up import json_rpc, node, postgres, redis_server
from tallystick.up.data_folder import DATA_VERSION, DataFolder
from tallystick.up.foreground import running_up
from tallystick.up.ports import API_PORT, holder, is_free, remembered
from tallystick.up.settings import UpSettings

OLDEST_PYTHON = (3, 11)
TORCH = "2.13.0"
MIN_MEMORY_BYTES = 2 * 2**30
MIN_TASKS = 100  # processes and threads: `up` has 45, a provider and a small job some 35 more
_SKEW_SECONDS = 120


class Row(Body):
    """One check."""

    check: str
    wanted: str
    found: str
    ok: bool
    remedy: str
    """What to do; empty when it is ok."""


def row(check: str, wanted: str, found: str, ok: bool, remedy: str) -> Row:
    """A row; what would remedy it is said only where it is not as wanted."""
    said = "" if ok else remedy
    return Row(check=check, wanted=wanted, found=found, ok=ok, remedy=said)


def _looked_for(check: str, wanted: str, look: Callable[[], str], remedy: str) -> Row:
    try:
        return row(check, wanted, look(), True, "")
    except TallystickError as error:
        return row(check, wanted, f"nothing usable: {error}", False, remedy)


def examine(settings: UpSettings) -> list[Row]:
    """All checks, in the order in which `up` would stumble over them."""
    folder, resources = DataFolder(settings.home.absolute()), Resources()
    return [
        _system(),
        _python(),
        _ensurepip(),
        _node(),
        _chain(settings),
        _postgres(settings, folder),
        _redis(settings),
        _permissions(folder),
        _version(folder),
        _disk(settings, folder),
        _port(folder),
        _clock(folder),
        _torch(),
        _memory(resources),
        _tasks(resources),
    ]


def _system() -> Row:
    able = sys.platform == "linux" and hasattr(os, "pidfd_open") and Path("/proc/self").exists()
    found = f"{platform.system()} {platform.release()} {platform.machine()}"
    return row("system", "Linux >= 5.4 with /proc", found, able, "run it on Linux")


def _python() -> Row:
    wanted = ".".join(map(str, OLDEST_PYTHON))
    found = platform.python_version()
    ok = sys.version_info[:2] >= OLDEST_PYTHON
    return row("python", f">= {wanted}", found, ok, f"install Python {wanted} or newer")


def _ensurepip() -> Row:
    ok = find_spec("ensurepip") is not None
    remedy = "install the package python3-venv (Debian, Ubuntu), or another build of Python"
    return row("ensurepip", "present", "present" if ok else "missing", ok, remedy)


def _node() -> Row:
    def look() -> str:
        found = node.find_node()
        return f"{node.version_line(found)} at {found}"

    return _looked_for("node", f">= {node.OLDEST_NODE}", look, node.NODE_REMEDY)


def _chain(settings: UpSettings) -> Row:
    if settings.rpc_url:
        return _outside("chain", "TALLYSTICK_RPC_URL", settings.rpc_url, json_rpc.answers)
    wanted = f"anvil {node.ANVIL_VERSION}"

    def look() -> str:
        found = node.find_anvil(settings.anvil)
        return f"{node.version_line(found) or 'does not run'} at {found}"

    seen = _looked_for("anvil", wanted, look, node.ANVIL_REMEDY)
    ok = seen.ok and node.ANVIL_VERSION in seen.found
    return row("anvil", wanted, seen.found, ok, node.ANVIL_REMEDY)


def _postgres(settings: UpSettings, folder: DataFolder) -> Row:
    if settings.database_url:
        url = settings.database_url
        return _outside("postgres", "TALLYSTICK_DATABASE_URL", url, postgres.answers)

    def look() -> str:
        binaries = postgres.find_binaries()
        how = postgres.how_to_run(binaries, uid=os.getuid())
        return f"{node.version_line(binaries / 'postgres')}, run {how}"

    return _looked_for("postgres", f"PostgreSQL {postgres.MAJOR}", look, postgres.REMEDY)


def _redis(settings: UpSettings) -> Row:
    if settings.redis_url:
        return _outside("redis", "TALLYSTICK_REDIS_URL", settings.redis_url, redis_server.answers)

    def look() -> str:
        found = redis_server.find_binary()
        return ".".join(map(str, redis_server.version_of(found))) + f" at {found}"

    wanted = ">= " + ".".join(map(str, redis_server.OLDEST))
    return _looked_for("redis", wanted, look, redis_server.REMEDY)


def _outside(
    check: str, variable: str, url: SecretStr, answers: Callable[[str], Coroutine[None, None, bool]]
) -> Row:
    ok = asyncio.run(answers(url.get_secret_value()))
    remedy = f"start that server, or correct {variable}"
    return row(check, f"the server in {variable}", "answers" if ok else "no answer", ok, remedy)


def _nearest(path: Path) -> Path:
    return next(p for p in (path, *path.parents) if os.path.exists(p))


def _permissions(folder: DataFolder) -> Row:
    nearest = _nearest(folder.home)
    ok = nearest.is_dir() and os.access(nearest, os.R_OK | os.W_OK | os.X_OK)
    found = f"{'may' if ok else 'may not'} write {nearest}"
    remedy = "choose another data folder with --home or TALLYSTICK_HOME"
    return row("permissions", f"may write {folder.home}", found, ok, remedy)


def _version(folder: DataFolder) -> Row:
    marker = folder.home / "version"
    try:
        found = marker.read_text("ascii", "replace").strip()
    except OSError:
        found = "none yet"
    ok = found == "none yet" or (found.isdecimal() and int(found) <= DATA_VERSION)
    remedy = "upgrade Tallystick, or choose another data folder"
    return row("data version", f"<= {DATA_VERSION}", found, ok, remedy)


def _disk(settings: UpSettings, folder: DataFolder) -> Row:
    free = shutil.disk_usage(_nearest(folder.home)).free
    wanted = f"{settings.min_free_bytes // 2**20} MB free"
    found = f"{free // 2**20} MB free"
    remedy = f"free some space under {folder.home}, or choose another data folder"
    return row("disk", wanted, found, free >= settings.min_free_bytes, remedy)


def _port(folder: DataFolder) -> Row:
    port = remembered(folder).get("api", API_PORT)
    if running_up(folder):
        return row("port", f"{port} free", f"{port} is this data folder's own", True, "")
    free = is_free(port)
    found = "free" if free else f"taken by {holder(port)}"
    return row("port", f"{port} free", found, free, "stop that, or use `tallystick up --port N`")


def _clock(folder: DataFolder) -> Row:
    now = time.time()
    witnesses = [Path(__file__), folder.run, folder.logs, folder.chain / "state.json"]
    newest = max(path.stat().st_mtime for path in witnesses if path.exists())
    ok = now >= newest - _SKEW_SECONDS
    found = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    wanted = "not before what was written earlier"
    return row("clock", wanted, found, ok, "set the clock, for example with NTP")


def _torch() -> Row:
    try:
        found = version("torch")
    except PackageNotFoundError:
        found = "missing"
    ok = found.partition("+")[0] == TORCH
    return row("torch", TORCH, found, ok, "install 'tallystick[provider]'")


def _memory(resources: Resources) -> Row:
    free = resources.free_memory()
    wanted = f"{MIN_MEMORY_BYTES // 2**20} MB available"
    remedy = (
        "close other programs, or raise the memory limit of this container or shell (ulimit -v)"
    )
    return row("memory", wanted, f"{free // 2**20} MB", free >= MIN_MEMORY_BYTES, remedy)


def _tasks(resources: Resources) -> Row:
    free = resources.free_tasks()
    found = "no limit" if free is None else f"{free} may be started"
    remedy = "raise the limit of processes of this container (pids) or user (ulimit -u)"
    return row("tasks", f"{MIN_TASKS}", found, free is None or free >= MIN_TASKS, remedy)
