"""A market in a test's hands: an operation is answered by the method that is named after it.

`GET_JOB` is answered by `get_job(job=...)`; one that takes a body is given it first.
"""

from typing import Any

from market.bodies.base import Body
from market.bodies.routes import TABLE, Route
from tallystick.sdk.client import MarketClient

_METHODS = {route: name.lower() for name, route in TABLE.items()}


class AnsweringMarket(MarketClient):
    """A client whose calls end in methods of its subclass."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")

    async def call(
        self, route: Route[Any], body: Body | None = None, *, key: str = "", by: Any = None,
        **named: Any,
    ) -> Any:  # fmt: skip
        """See `MarketClient.call`."""
        bodies = () if body is None else (body,)
        return await getattr(self, _METHODS[route])(*bodies, **named)
