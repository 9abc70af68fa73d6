"""Do governance, draws and the market know claims alone, and nothing of one strategy?"""

import re

import pytest

from tests.architecture.checkout import ROOT

FOLDERS = ("contracts/governance", "verification/draws", "market")
SUFFIXES = {".py", ".html", ".js", ".css", ".md"}
CLASSES = (
    "GradCommit",
    "AverageSet",
    "AverageMember",
    "AveragedChunk",
    "AuditReport",
    "StepClose",
    "UnitLeaf",
    "PartDigest",
)


def snake_case(name: str) -> str:
    """How a function or a column spells the name of a class."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


FORBIDDEN = re.compile("|".join([*CLASSES, *map(snake_case, CLASSES), "every_step"]))


@pytest.mark.parametrize("folder", FOLDERS)
def test_names__of_a_strategy__are_not_mentioned(folder: str) -> None:
    files = [path for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]

    assert files, "nothing was searched"
    assert not [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in files
        if "node_modules" not in path.parts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if FORBIDDEN.search(line)
    ]
