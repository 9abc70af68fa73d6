"""What an account lost of its pay, and why: said by the agent once, and shown by `status`.

A line that is lost stays lost, so a sum by reason only ever grows; what is told is the growth.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable

from contracts.terms.amounts import BaseUnits, format_tokens
from contracts.terms.errors import NotFound
from contracts.terms.ids import Address, JobId
from market.bodies.earnings import EarningView
from market.bodies.routes import GET_EARNINGS
from tallystick.provider.faults import Say
from tallystick.sdk.client import MarketClient


def lost_by_reason(lines: Iterable[EarningView]) -> dict[str, BaseUnits]:
    """Base units that lines lost, by the sentence that says why."""
    found: dict[str, BaseUnits] = defaultdict(lambda: BaseUnits(0))
    for line in lines:
        if line.state == "forfeited" and line.waits_for is not None:
            reason = line.waits_for.sentence.removeprefix("lost: ")
            found[reason] = BaseUnits(found[reason] + line.amount)
    return dict(found)


async def losses_in(client: MarketClient, account: Address, job: JobId) -> dict[str, BaseUnits]:
    """What an account lost in a job, by reason; raises NotFound, Unavailable."""
    newest = await client.call(GET_EARNINGS, account=account, job=job, limit=1)
    if not newest.parts.forfeited:
        return {}
    return lost_by_reason((await client.whole(GET_EARNINGS, account=account, job=job)).lines)


class Losses:
    """Tells an owner of each loss once, as long as this agent runs."""

    def __init__(self, client: MarketClient, account: Address, say: Say) -> None:
        self._client, self._account, self._say = client, account, say
        self._told: dict[tuple[JobId, str], BaseUnits] = {}

    async def look(self, jobs: Collection[JobId]) -> None:
        """Look at jobs once; raises Unavailable."""
        for job in sorted(jobs):
            try:
                found = await losses_in(self._client, self._account, job)
            except NotFound:  # a market that was set up anew
                continue
            for reason, amount in found.items():
                more = amount - self._told.get((job, reason), 0)
                self._told[job, reason] = amount
                if more > 0:
                    tokens = format_tokens(BaseUnits(more))
                    self._say(f"{tokens} tokens of job {job.hex()[:12]} are forfeited: {reason}")
