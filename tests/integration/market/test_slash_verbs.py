"""What people do about a slash from the command line: see it, get the evidence, answer it."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from contracts.keys.store import save_wallet
from contracts.terms.digest import blob_digest
from contracts.terms.ids import JobId
from market.bodies.routes import POST_EVIDENCE
from tests.integration.bad_input.servers import market_in_a_thread
from tests.integration.bad_input.verbs import Said, call
from tests.integration.market.client import sdk
from tests.integration.market.test_convictions import evidence, note, ruled, slashable, worked
from tests.integration.market.test_evidence import later
from tests.support.escrow_model import ANNOUNCE
from tests.support.history import make_wallet
from tests.support.market_world import World

BUNDLE = b"bundle"
NAME = blob_digest(BUNDLE)


async def announced(world: World) -> JobId:
    """A job whose only peer is convicted, after an auditor has shown why."""
    maker, commit = await worked(world)
    await note(world, ruled(maker, slashable(maker, commit.digest())))
    async with sdk(world) as client:
        await client.call(
            POST_EVIDENCE, evidence(world, maker, commit.digest()), job=maker.spec.job()
        )
    await later(world)
    return maker.spec.job()


async def burned(world: World) -> JobId:
    """The same, when its time has come."""
    job = await announced(world)
    await later(world, ANNOUNCE)
    await later(world)
    return job


@contextmanager
def market(
    world: World, happens: Callable[[World], Awaitable[JobId]]
) -> Iterator[tuple[JobId, str]]:
    """A job at a market that listens, and its URL."""

    async def prepared() -> JobId:
        return await happens(world)

    job = asyncio.run(prepared())
    with market_in_a_thread(world) as url:
        yield job, url


def said(folder: Path, url: str, *words: str) -> Said:
    """A command at this market, with a wide terminal."""
    home = {"TALLYSTICK_HOME": str(folder), "TALLYSTICK_MARKET": url, "COLUMNS": "200"}
    return call(list(words), home)


def test_job_slashes__burned__is_shown_to_people_and_programs(world: World, tmp_path: Path) -> None:
    with market(world, burned) as (job, url):
        table = said(tmp_path, url, "job", "slashes", job.hex())
        data = said(tmp_path, url, "job", "slashes", job.hex(), "-o", "json")

    words = ("burned", NAME.hex(), "announced in", "ended in")
    assert [word for word in words if word not in table.stdout] == []
    (found,) = json.loads(data.stdout)["convictions"]
    assert found["account"] == make_wallet("ann").account.hex()
    assert found["slash"]["evidence"] == NAME.hex()


def test_provider_answer__by_the_convict__is_shown_beside_the_evidence(
    world: World, tmp_path: Path
) -> None:
    found, own, answer = (tmp_path / name for name in ("found", "own", "answer"))
    save_wallet(tmp_path / "provider" / "wallet.json", make_wallet("ann"))
    own.write_bytes(b"a file that speaks for ann")
    with market(world, announced) as (_, url):
        evidence = said(tmp_path, url, "job", "evidence", NAME.hex(), "--to", str(found))
        show_answer = ("job", "evidence", NAME.hex(), "--to", str(answer), "--answer")
        before = said(tmp_path, url, *show_answer)
        answered = [
            said(tmp_path, url, "provider", "answer", NAME.hex(), str(own)) for _ in range(2)
        ]
        said(tmp_path, url, *show_answer)

    assert found.read_bytes() == BUNDLE and "tallystick audit rerun" in evidence.stdout
    assert before.exit_code == 3 and "shown nothing" in before.stderr
    assert [each.exit_code for each in answered] == [0, 0], answered
    assert answer.read_bytes() == own.read_bytes()
