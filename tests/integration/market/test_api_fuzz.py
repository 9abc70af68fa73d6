"""Whatever is sent to an operation: no 5xx, and no answer that the OpenAPI document lacks."""

import pytest

from market.api.app import make_app
from market.api.routing import operations
from tests.support.market_world import memory_world

DOCUMENT = make_app(memory_world().api()).openapi()
NAMES = [f"{method} {path}" for method, path, _ in operations(DOCUMENT)]


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", NAMES)
def test_operation__whatever_is_sent__answers_as_documented(name: str) -> None:
    from tests.integration.market import fuzzing  # schemathesis is slow to import

    fuzzing.check_operation(name)
