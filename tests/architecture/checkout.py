"""Where the checkout is, and what lies in it, for the tests about the code itself."""

import ast
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("contracts", "training", "verification", "market", "tallystick")
PINS = ROOT / "constraints-linux-cp311.txt"

# Installed, generated or written in another language: none of it is our Python.
NOT_OURS = shutil.ignore_patterns("node_modules", "__pycache__", "out", "cache")


def project() -> dict[str, Any]:
    """The parsed pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def sources() -> Iterator[Path]:
    """Every Python file of the five packages, relative to the root, sorted."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            relative = path.relative_to(ROOT)
            if "node_modules" not in relative.parts:
                yield relative


def module_name(source: Path) -> str:
    """The dotted name that `source` is imported by."""
    parts = source.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def parsed(source: Path) -> ast.Module:
    """Syntax tree of one file of `sources()`."""
    return ast.parse((ROOT / source).read_text(), filename=str(source))


def copy_to(folder: Path) -> Path:
    """Copy what the wheel and the import rules are made from into `folder`; returns it."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=NOT_OURS)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run one program to its end, with its output as text."""
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def run_python(code: str) -> str:
    """Standard output of `code`, run by a fresh Python in the checkout."""
    done = run(sys.executable, "-c", code, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout
