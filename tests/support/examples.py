"""How many examples does Hypothesis draw of a property that is expensive?

The profiles of `tests/conftest.py` say it for all others: 50 in the gate, always the same; 500 at
night, random, and what fails is kept in `.hypothesis`.
"""

import os

GATE, NIGHTLY = "gate", "nightly"


def profile() -> str:
    """Name of the profile of this run: `TESTS_PROFILE`, or the gate's."""
    return os.environ.get("TESTS_PROFILE", GATE)


def examples(number: int) -> int:
    """Examples of an expensive property: `number` in the gate, ten times as many at night."""
    return number * 10 if profile() == NIGHTLY else number
