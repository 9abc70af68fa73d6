"""Does a process in production load anything that only tests and demos need?

Asked of the wheel, unpacked where no checkout is, with the libraries of this environment.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.installed import Installed

ENTRY_POINTS = (
    "contracts.chain.deploy",
    "market.api.__main__",
    "market.api.app",
    "market.bootstrap",
    "market.migrate",
    "market.worker.app",
    "tallystick.cli.main",
    "tallystick.cli.provider",
    "tallystick.coordinator.__main__",
    "tallystick.host.__main__",
    "tallystick.provider.agent",
    "tallystick.provider.outside",
    "tallystick.provider.peer",
    "tallystick.provider.probe",
    "tallystick.up.foreground",
    "tallystick.up.forking",
    "tallystick.up.gateway",
)
"""What `tallystick up`, the host and the agent start, and what these load when they are started."""

NOT_IN_PRODUCTION = ("tallystick.demo", "tallystick.gym", "tests")

SETTINGS = (
    ("DATABASE_URL", "postgresql://nobody@localhost/none"),
    ("REDIS_URL", "redis://localhost/0"),
    ("RPC_URL", "http://localhost"),
    *((name, "none") for name in ("CONTRACTS", "BLOBS", "KEYS", "HOME")),
)
"""Without them a Celery worker refuses to be imported; nothing is connected to."""


def loaded(wheel: Path, folder: Path) -> dict[str, list[str]]:
    """Modules that should not be there, by the first entry point whose import loads them."""
    code = f"""
import importlib, json, os, sys
os.environ.update({{f"TALLYSTICK_{{name}}": value for name, value in {SETTINGS!r}}})
loaded, known = {{}}, set()
for name in {ENTRY_POINTS!r}:
    importlib.import_module(name)
    found = {{module for module in sys.modules if module.startswith({NOT_IN_PRODUCTION!r})}}
    loaded[name] = sorted(found - known)
    known |= found
import contracts, training, verification, market, tallystick
for package in (contracts, training, verification, market, tallystick):
    assert package.__file__.startswith({str(wheel)!r}), package.__file__
print(json.dumps(loaded))
"""
    environment = {"PYTHONPATH": str(wheel), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-c", code]
    said = subprocess.check_output(command, cwd=folder, env=environment, text=True)
    found: dict[str, list[str]] = json.loads(said)
    return found


def test_entry_points__of_the_wheel__load_no_gym_no_fake_and_no_test(
    installed: Installed, tmp_path: Path
) -> None:
    found = loaded(installed.unpack(tmp_path / "wheel"), tmp_path)

    assert {name: modules for name, modules in found.items() if modules} == {}
