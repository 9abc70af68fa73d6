"""Does what is installed come from the pins, everywhere and without asking twice?"""

import json
import re
from typing import Any

from tests.architecture.checkout import PINS, ROOT, project

LOCK = ROOT / "contracts" / "solidity" / "package-lock.json"


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


def locked() -> dict[str, dict[str, Any]]:
    """Entries of the npm lock file by their folder."""
    packages: dict[str, dict[str, Any]] = json.loads(LOCK.read_text())["packages"]
    return packages


def test_pins__every_requirement__has_one_exact_version() -> None:
    assert required() - set(pinned()) == set()


def test_pins__torch__is_the_same_in_both_files() -> None:
    provider = project()["project"]["optional-dependencies"]["provider"]

    assert f"torch=={pinned()['torch']}" in provider


def test_lock__every_entry__names_no_registry() -> None:
    assert [name for name, entry in locked().items() if "resolved" in entry] == []


def test_lock__optional_dependencies__are_all_there() -> None:
    # npm writes only what the index at hand has, and `npm ci` then refuses its own file
    wanted = {
        f"node_modules/{name}"
        for entry in locked().values()
        for name in entry.get("optionalDependencies", {})
    }

    assert wanted - set(locked()) == set()
