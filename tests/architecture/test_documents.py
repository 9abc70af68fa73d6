"""Do the READMEs speak of what is there?"""

import re

import pytest

from tests.architecture.checkout import PACKAGES, ROOT

READMES = ("README.md", *(f"{package}/README.md" for package in PACKAGES))

# A path in backticks that starts in one of our folders: `training/swarm/step.py`, `market/`.
OUR_PATH = re.compile(rf"`((?:{'|'.join(PACKAGES)}|tests|tools)/[\w./-]*)`")


@pytest.mark.parametrize("readme", READMES)
def test_readme__paths_it_names__exist(readme: str) -> None:
    named = OUR_PATH.findall((ROOT / readme).read_text())

    assert [path for path in named if not (ROOT / path).exists()] == []


def test_makefile__targets__are_relative_and_phony() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([\w/.-]+):", makefile, flags=re.MULTILINE)
    phony = re.search(r"^\.PHONY:((?:.*\\\n)*.*)$", makefile, flags=re.MULTILINE)

    assert phony is not None
    assert set(targets) - {".PHONY"} == set(phony[1].replace("\\", " ").split())


def test_continuous_integration__runs__make_test() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text()
