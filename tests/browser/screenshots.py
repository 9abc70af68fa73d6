"""Pictures of the market, a job and its audit for `docs/`, from a real job in which a peer lies.

`python -m tests.browser.screenshots --to docs` writes market, job, provider and audit (.png), and
once the job is over job-over.png and, on a narrow screen, job-narrow.png.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path

from market.bodies.routes import GET_OFFERS, GET_PEERS
from tests.browser.driving import Browser, browser_in
from tests.browser.real_job import LOOK_SECONDS, RealJob, real_job
from tests.support.patience import patience

STEPS = 60
FIRST_STEP = 30  # from which on there is a curve to look at
ASKS = {"gil": "1200000", "hal": "1500000"}
"""Providers who come when the job has its members: open offers."""
MOST_BYTES = 400_000
MOST_PIXELS = 1500
"""Height; what is below is cut off."""
WIDE, NARROW = 1280, 390


async def ready(shown: RealJob) -> None:
    """Wait until there is something on every page."""
    running = shown.running
    for name, ask in ASKS.items():
        running.start_provider(name, ask=ask)
    await shown.has_all_to_show(within=300)
    await running.until(shown.job, lambda view: view.progress.step >= FIRST_STEP, within=300)
    async with asyncio.timeout(patience(120)):
        while sum(o.state == "open" for o in (await running.client.whole(GET_OFFERS)).offers) < len(
            ASKS
        ):
            await asyncio.sleep(LOOK_SECONDS)


def take(browser: Browser, url: str, file: Path, *, width: int = WIDE) -> None:
    """One picture."""
    browser.open(url, width=width)
    browser.screenshot(file, most_pixels=MOST_PIXELS)
    size = file.stat().st_size
    print(f"{file}: {size / 1000:.0f} kB")
    assert size <= MOST_BYTES, f"{file} has {size} bytes, more than {MOST_BYTES}"


def take_running(browser: Browser, shown: RealJob, account: str, to: Path) -> None:
    """Pictures of a job that is being trained."""
    job = shown.job.hex()
    for name, path in (
        ("market", "/"),
        ("job", f"/jobs/{job}"),
        ("provider", f"/providers/{account}"),
        ("audit", f"/audit/{job}"),
    ):
        take(browser, shown.url + path, to / f"{name}.png")


def take_over(browser: Browser, shown: RealJob, to: Path) -> None:
    """Pictures of the same job when it is over."""
    url = f"{shown.url}/jobs/{shown.job.hex()}"
    take(browser, url, to / "job-over.png")
    take(browser, url, to / "job-narrow.png", width=NARROW)


async def take_all(to: Path) -> None:
    """Run the job, look at it, and end everything."""
    to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tallystick-") as folder:
        async with real_job(Path(folder) / "real", steps=STEPS) as shown:
            await ready(shown)
            with browser_in(Path(folder) / "profile") as browser:
                await asyncio.to_thread(take_running, browser, shown, await _worker(shown), to)
                await shown.running.until(
                    shown.job, lambda view: view.state == "finished", within=900
                )
                await asyncio.to_thread(take_over, browser, shown, to)


async def _worker(shown: RealJob) -> str:
    """The account that has earned most, in hex."""
    seats = (await shown.running.client.call(GET_PEERS, job=shown.job)).seats
    return max(seats, key=lambda seat: seat.earned).account.hex()


def main() -> None:
    """Read the words of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.browser.screenshots", description=__doc__
    )
    parser.add_argument("--to", type=Path, required=True, help="folder for the pictures")
    asyncio.run(take_all(parser.parse_args().to))


if __name__ == "__main__":
    main()
