"""Do the worked numbers of docs/odds.md follow from the code that it names?"""

import doctest
import re

from tests.architecture.checkout import ROOT
from tests.support.documents import blocks
from verification.draws import economics, odds, schedules

TEXT = (ROOT / "docs" / "odds.md").read_text()
MODULES = {"economics": economics, "odds": odds, "schedules": schedules}
NAMED = re.compile(rf"\b({'|'.join(MODULES)})\.(?!py\b|md\b)(\w+)")


def test_odds_document__sessions__answer_as_printed() -> None:
    typed = "\n".join(block.text for block in blocks(TEXT) if block.language == "pycon")
    said: list[str] = []
    session = doctest.DocTestParser().get_doctest(typed, {}, "odds", "docs/odds.md", 0)

    found = doctest.DocTestRunner(verbose=False).run(session, out=said.append)

    assert found.failed == 0, "".join(said)
    assert found.attempted >= 20


def test_odds_document__functions_it_names__exist() -> None:
    named = NAMED.findall(TEXT)

    assert len(named) >= 5
    assert [name for module, name in named if not hasattr(MODULES[module], name)] == []
