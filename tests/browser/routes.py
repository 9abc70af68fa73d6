"""Which pages are there? Asked of the application, so that a new page cannot be forgotten."""

import re
from collections.abc import Iterable

from fastapi.routing import iter_route_contexts

from market.api.app import make_app
from market.web.assets import PREFIX
from market.web.headers import is_page


def page_routes() -> list[str]:
    """Paths of all routes that are no part of `/v1`, with their parameters in braces."""
    found = (each.path for each in iter_route_contexts(make_app().routes))
    return [path for path in found if path and is_page(path) and path != PREFIX]


def unopened(addresses: Iterable[str]) -> list[str]:
    """Routes to which none of the addresses leads."""
    paths = [address.partition("?")[0] for address in addresses]
    return [
        route
        for route in page_routes()
        if not any(re.fullmatch(_pattern(route), path) for path in paths)
    ]


def _pattern(route: str) -> str:
    return "[^/]+".join(map(re.escape, re.split(r"\{\w+\}", route)))
