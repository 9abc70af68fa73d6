"""Where a job's coordinator is now, for those who dial it."""

import contextlib
from dataclasses import dataclass, field

from contracts.terms.errors import Unavailable
from contracts.terms.ids import JobId
from market.bodies.routes import GET_JOB
from tallystick.sdk.client import MarketClient


@dataclass
class Located:
    """Asks the market before every dial; an unreachable market leaves the last known address."""

    client: MarketClient
    job: JobId
    last: str | None = field(default=None)

    async def __call__(self) -> str | None:
        """`host:port`, or None while nobody knows it."""
        with contextlib.suppress(Unavailable):
            self.last = (
                await self.client.call(GET_JOB, job=self.job)
            ).coordinator_address or self.last
        return self.last
