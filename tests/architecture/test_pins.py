"""Does what is installed come from the pins, everywhere and without asking twice?"""

import json
import re
from typing import Any

import pytest

from tests.architecture.checkout import PINS, ROOT, project

PARTS = ("contracts/solidity", "tests/browser", "tests/second_evm")


def normal(name: str) -> str:
    """A distribution's name as an index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> dict[str, str]:
    """Version by name, of the constraints file."""
    lines = [line for line in PINS.read_text().splitlines() if not line.startswith("#")]
    return {normal(name): version for name, version in (line.split("==") for line in lines)}


def required() -> set[str]:
    """Every name that the base or an extra asks for."""
    table = project()["project"]
    lists = [table["dependencies"], *table["optional-dependencies"].values()]
    texts = [text for names in lists for text in names]
    return {normal(re.split(r"[\[<>=;, ]", text)[0]) for text in texts}


def locked(part: str) -> dict[str, dict[str, Any]]:
    """Entries of an npm part's lock file by their folder."""
    lock = json.loads((ROOT / part / "package-lock.json").read_text())
    packages: dict[str, dict[str, Any]] = lock["packages"]
    return packages


def test_pins__every_requirement__has_one_exact_version() -> None:
    assert required() - set(pinned()) == set()


def test_pins__torch__is_the_same_in_both_files() -> None:
    provider = project()["project"]["optional-dependencies"]["provider"]

    assert f"torch=={pinned()['torch']}" in provider


@pytest.mark.parametrize("part", PARTS)
def test_lock__every_entry__names_no_registry(part: str) -> None:
    assert [name for name, entry in locked(part).items() if "resolved" in entry] == []


@pytest.mark.parametrize("part", PARTS)
def test_lock__optional_dependencies__are_all_there(part: str) -> None:
    # npm writes only what the index at hand has, and `npm ci` then refuses its own file
    wanted = {
        f"node_modules/{name}"
        for entry in locked(part).values()
        for name in entry.get("optionalDependencies", {})
    }

    assert wanted - set(locked(part)) == set()
