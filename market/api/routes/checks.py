"""What checking has shown of a job's peers: audits, rates, odds, stakes."""

import asyncio
from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query, Response

from contracts.terms.errors import NotFound
from market.api.context import ApiDep, JobPath, WorkDep, answer
from market.api.refusals import refused
from market.bodies import ChecksView, OddsView, PeerChecksView, RatesView, ReceivedView
from market.service.reputation import reputation_view
from market.service.show_checks import JobChecks, PeerChecks, checks_of_job
from verification.draws.odds import VOLUMES, Exposed, Odds, spelled
from verification.tallies import Received, rates_of

router = APIRouter(tags=["checks"])

MAX_FALSIFIED = 10_000_000
_NONE = Received(drawn=0, matched=0, mismatched=0, unrepeated=0, missing=0)


@router.get("/jobs/{name}/checks", response_model=ChecksView, responses=refused(NotFound))
async def get_checks(
    job: JobPath,
    api: ApiDep,
    work: WorkDep,
    falsified: Annotated[
        int | None,
        Query(ge=1, le=MAX_FALSIFIED, description="odds of so many peer-steps of each peer"),
    ] = None,
) -> Response:
    """Audits, rates, stakes and odds of a job's peers; `falsified`: of so many peer-steps, too."""
    async with work:
        found = await checks_of_job(job, work, api.followed)
    volumes = VOLUMES if falsified is None else (falsified,)
    # The product of a long job's rates takes seconds; others are answered meanwhile.
    return answer(await asyncio.to_thread(checks_view, found, volumes))


def checks_view(found: JobChecks, volumes: Sequence[int] = VOLUMES) -> ChecksView:
    """Everybody of a job with their odds at these volumes."""
    tally = found.tally
    odds = {} if found.terms is None else tally.odds(found.terms, volumes)
    received = tally.received()
    return ChecksView(
        job=found.job,
        checking="on" if found.is_checked else "off",
        step=found.step,
        peers=tuple(
            _peer_view(each, found, odds.get(each.peer, ()), received.get(each.peer, _NONE))
            for each in found.peers
        ),
    )


def _peer_view(
    each: PeerChecks, found: JobChecks, odds: Sequence[Odds], received: Received
) -> PeerChecksView:
    tally = found.tally
    peer_steps = tally.exposed.get(each.peer, [])
    return PeerChecksView(
        peer=each.peer,
        account=each.account,
        stage=each.stage,
        peer_steps=len(peer_steps),
        rates=_rates_view(peer_steps),
        reports=tally.done[each.peer],
        missed=tally.missed[each.peer],
        received=ReceivedView(
            drawn=received.drawn,
            open=received.open,
            matched=received.matched,
            mismatched=received.mismatched,
            unrepeated=received.unrepeated,
            missing=received.missing,
        ),
        odds=tuple(OddsView(**spelled(stated)) for stated in odds),
        stake=each.stake,
        stake_hours=each.stake_hours,
        convicted_at=tally.convicted.get(each.peer),
        reputation=reputation_view(each.reputation),
    )


def _rates_view(peer_steps: Sequence[Exposed]) -> RatesView | None:
    if not peer_steps:
        return None
    rates = rates_of(peer_steps)
    return RatesView(least=rates.least, mean=rates.mean, greatest=rates.greatest)
