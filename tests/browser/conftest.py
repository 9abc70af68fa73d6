"""One browser for all tests of this folder, and a market with something on every page."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.browser.driving import Browser, browser_in
from tests.browser.showcase import Showcase, showcase
from tests.integration.bad_input.servers import market_in_a_thread
from tests.support.databases import databases, taken

__all__ = ["databases", "taken"]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless Chromium."""
    with browser_in(tmp_path_factory.mktemp("profile")) as started:
        yield started


@dataclass(frozen=True)
class Site:
    """A market that listens, and what it shows."""

    url: str
    shown: Showcase


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    """A market that nothing changes."""
    shown = asyncio.run(showcase())
    with market_in_a_thread(shown.world) as url:
        yield Site(url, shown)
