"""Every page in a real browser, during and after a real checked job in which a peer lies.

No page has an error, a failed request or a serious fault; the job's page grows without a reload; a
path computed in the page ends at a root on the chain; a job is posted by keyboard, with a wallet
in the browser.
"""

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from contracts.terms.ids import Digest, JobId, StepNumber
from market.bodies.routes import GET_BATCH, GET_STEP
from tests.browser.driving import browser_in
from tests.browser.real_job import LIAR, RealJob, real_job
from tests.browser.routes import unopened
from tests.browser.tour import About, Tour
from tests.browser.wallet import ask_for_quote, sign_and_post

BUDGET = 4000
ORDER = {"name": "by keyboard", "budget": str(BUDGET), "hours": "1"}


async def about(shown: RealJob) -> About:
    """Who and what the pages are about now."""
    paid = await shown.paid()
    assert paid is not None
    lines = (await shown.running.client.call(GET_STEP, job=shown.job, step=StepNumber(1))).lines
    worker = next(line.peer for line in lines if line.kind == "work")
    return About(shown.job.hex(), paid, shown.account(LIAR), worker.hex())


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_pages__checked_job_with_a_liar__hold_during_it_and_after_it(tmp_path: Path) -> None:
    async with real_job(tmp_path / "real") as shown:
        with ExitStack() as opened:
            browser = await asyncio.to_thread(
                opened.enter_context, browser_in(tmp_path / "profile")
            )
            tour = Tour(browser, shown.url)

            await shown.has_all_to_show(within=180)
            during = await about(shown)
            before, later = await asyncio.to_thread(tour.see_it_grow, during)
            await asyncio.to_thread(tour.stay_fresh, during)
            await asyncio.to_thread(tour.open_all, during)
            assert (await shown.running.job(shown.job)).state == "running"

            await shown.cancel(within=120)
            after = await about(shown)
            await asyncio.to_thread(tour.open_all, after)
            root = await asyncio.to_thread(tour.prove, after)
            batch = await shown.running.client.call(GET_BATCH, root=Digest(bytes.fromhex(root)))

            poster, like = shown.running.poster, shown.job.hex()
            await asyncio.to_thread(ask_for_quote, browser, shown.url, like, poster, **ORDER)
            *_, posted = await asyncio.to_thread(sign_and_post, browser, poster)
            view = await shown.running.until(
                JobId(bytes.fromhex(posted)), lambda view: view.funded > 0, within=60
            )
            assert browser.logs() == []

    assert 2 <= before < later
    assert unopened(tour.addresses) == []
    assert batch.block is not None and batch.beacon is not None
    assert (view.spec["name"], view.funded) == ("by keyboard", BUDGET * 10**6)
