"""A peer that answers twenty times faster with junk wins no more than its cap (docs/protocol.md 7).

Real processes on one stack, a job of one stage. The honest ones are slowed, so that a unit takes
them at least twenty times as long as it takes the one that computes nothing; by speed alone it
would win nearly all units. Its share is read from the seals.
"""

from fractions import Fraction
from math import ceil
from pathlib import Path

import pytest

from contracts.terms.ids import JobId
from tallystick.demo.shares import JobWork
from tests.support.stack import Stack, stack
from training.swarm.caps import OWNER_CAP, PEER_CAP

UNITS, STEPS = 20, 4
SLOWDOWN = 30.0
JUNK = ("tests.support.junk_provider",)


async def _trained(running: Stack, honest: tuple[str, ...]) -> JobId:
    for name in honest:
        running.start_provider(name, slowdown=SLOWDOWN)
    running.start_provider("junk", slowdown=SLOWDOWN, agent=JUNK)
    submitted = await running.submit(
        peers_per_stage=len(honest) + 1, units_per_step=UNITS, steps=STEPS
    )
    await running.settled(submitted.job, within=120)
    return submitted.job


def _rates(running: Stack, job: JobId) -> dict[str, int]:
    lines = running.lines(running.coordinator_log(job), "peer_joined")
    return {line["peer"]: line["rate"] for line in lines}


def _units_of_junk(running: Stack, job: JobId, work: JobWork) -> list[int]:
    peer = running.peer_of("junk", job)
    return [step.get(peer, 0) for step in work.steps]


@pytest.mark.chaos
@pytest.mark.timeout(200)
async def test_junk__measured_like_the_others__has_at_most_1_2_of_its_part(tmp_path: Path) -> None:
    async with stack(tmp_path, forked=True) as running:
        job = await _trained(running, ("ann", "bob"))

        work = await running.work(job)
        rates = _rates(running, job)
        part = Fraction(rates[running.peer_of("junk", job).hex()], sum(rates.values()))
        cap = ceil(PEER_CAP * part * UNITS)
        junk = _units_of_junk(running, job, work)
        assert len(junk) == STEPS and work.lost == 0
        assert max(junk) <= cap < UNITS
        assert sum(junk) >= STEPS * (cap - 2)  # it took what it could: the cap is what held it


@pytest.mark.chaos
@pytest.mark.timeout(200)
async def test_junk__lies_when_it_is_measured__has_at_most_a_quarter_among_five_owners(
    tmp_path: Path,
) -> None:
    async with stack(tmp_path, forked=True) as running:
        running.variables["TALLYSTICK_TEST_LIES"] = "1"
        job = await _trained(running, ("ann", "bob", "cem", "dan"))

        work = await running.work(job)
        rates = _rates(running, job)
        assert rates[running.peer_of("junk", job).hex()] > sum(rates.values()) / 2
        junk = _units_of_junk(running, job, work)
        assert len(junk) == STEPS and work.lost == 0
        assert max(junk) <= ceil(OWNER_CAP * UNITS)
