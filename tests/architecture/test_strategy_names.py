"""Do governance, draws and the market know claims alone? Who else knows one strategy?"""

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
OF_LOCAL_STEPS = re.compile(
    r"""Local(Spec|Fields|WithTorch|Liar|Recipe|State)|\b(batch|job|self|wanted|spec)\.local\b"""
    r"""|is_local|== "local"|inner_steps|strategies\.local"""
)
KNOW_LOCAL_STEPS = {
    "contracts/terms/messages.py",
    "tallystick/cli/job_views.py",
    "tallystick/demo/cast.py",
    "tallystick/gym/local_steps.py",
    "tallystick/gym/registry.py",
    "tallystick/sdk/job_file.py",
    "tallystick/sdk/job_spec.py",
    "tallystick/sdk/sample.py",
    "tallystick/sdk/strategies.py",
    "training/strategies/limits.py",
    "training/strategies/registry.py",
}


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


def test_names__of_local_steps__are_known_to_a_few_files() -> None:
    folders = ("contracts", "market", "tallystick", "training", "verification")
    own = ROOT / "training/strategies/local"
    files = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if not path.is_relative_to(own)
    ]

    knowing = {
        str(path.relative_to(ROOT))
        for path in files
        if OF_LOCAL_STEPS.search(path.read_text(encoding="utf-8"))
    }
    assert knowing == KNOW_LOCAL_STEPS
