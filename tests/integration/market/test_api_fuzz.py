"""Whatever is sent to an operation: no 5xx, and no answer that the OpenAPI document lacks."""

from types import ModuleType

import pytest

from market.api.routing import operations
from tests.support.market_world import document

NAMES = [f"{method} {path}" for method, path, _ in operations(document())]


@pytest.fixture(scope="module")
def fuzzing() -> ModuleType:
    """Whose market is made, and lasts, when it is imported; so late, as schemathesis is slow to."""
    from tests.integration.market import fuzzing

    return fuzzing


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NAMES)
def test_operation__whatever_is_sent__answers_as_documented(name: str, fuzzing: ModuleType) -> None:
    fuzzing.check_operation(name)
