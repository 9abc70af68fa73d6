"""A market is made anew; its provider and its poster come with the homes that they had on the old.

The new one has the keys of the old, so that chain id and all addresses are the same and only the
first block differs. Then both go back to the old one, and find what they left there.
"""

import asyncio
import shutil
import sqlite3
import time
from pathlib import Path

import pytest

from contracts.terms.errors import WrongConfiguration
from contracts.terms.ids import JobId
from contracts.terms.moments import UnixSeconds
from tallystick.sdk.job_file import parse_job_file
from tallystick.sdk.submit import Submitted, submit
from tests.support.patience import patience
from tests.support.stack import MICRO_JOB, Stack, stack

HOMES = ("ann", "orders", "poster.json")


async def ordered(running: Stack) -> Submitted:
    """The poster's job, ordered as by one who types the same line again."""
    return await submit(
        running.client,
        running.poster,
        parse_job_file(MICRO_JOB | {"steps": 4}),
        orders=running.folder / "orders",
        now=UnixSeconds(int(time.time())),
    )


async def trained(running: Stack, *, stake: str) -> JobId:
    """A new job of the poster, paid for and claimed."""
    running.start_provider("ann", stake=stake)
    submitted = await ordered(running)
    assert submitted.is_new
    await running.settled(submitted.job, within=120)
    return submitted.job


def bring_homes(old: Path, new: Path) -> None:
    """What provider and poster keep, as they come with it to another market."""
    new.mkdir(exist_ok=True)
    for name in HOMES:
        shutil.move(old / name, new / name)


def hashes(home: Path) -> set[str]:
    """Of all that a provider has sent, by chain; what it sends next is on another one."""
    found = set[str]()
    for store in home.glob("transactions-*.db"):
        with sqlite3.connect(store) as base:
            found |= {"0x" + row[0].hex() for row in base.execute("SELECT hash FROM attempts")}
    return found


@pytest.mark.nightly  # in the gate: tests/integration/chain/test_another_chain.py
@pytest.mark.timeout(600)
async def test_up_made_anew__old_homes__both_work_and_nothing_of_the_old_chain_is_sent(
    tmp_path: Path,
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    async with stack(old) as running:
        first, old_deployment = await trained(running, stake="10"), running.contracts.deployment
    sent = hashes(old / "ann")
    bring_homes(old, new)
    shutil.copytree(old / "market" / "keys", new / "market" / "keys")

    async with stack(new) as running:
        # Another stake: the same one would be the same transaction, signed afresh.
        second, chain = await trained(running, stake="11"), running.contracts.chain
        assert running.contracts.deployment == old_deployment
        known = [await chain.request("eth_getTransactionByHash", [name]) for name in sent]
        own = hashes(new / "ann") - sent
    assert sent and known == [None] * len(sent) and own
    said = (new / "provider-ann.log").read_text()
    assert said.count("is put aside in") == 1 and "waiting: " not in said
    assert first != second

    bring_homes(new, old)
    async with stack(old) as running:
        running.start_provider("ann")
        assert (await ordered(running)).job == first
        async with asyncio.timeout(patience(60)):
            while "is back" not in (old / "provider-ann.log").read_text():
                await asyncio.sleep(0.1)
        assert running.lease_folder("ann", first).is_dir()

    shutil.rmtree(old / "market" / "chain")
    with pytest.raises(WrongConfiguration, match="the database is of another chain"):
        async with stack(old):
            pass
