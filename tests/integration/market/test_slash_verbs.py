"""What people do about a slash from the command line: see it, get the evidence, contest it."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from contracts.keys.store import save_wallet
from contracts.terms.digest import blob_digest
from contracts.terms.ids import Digest, JobId
from market.bodies.routes import POST_EVIDENCE
from market.service.contests import judge_contest
from tests.integration.bad_input.servers import market_in_a_thread
from tests.integration.bad_input.verbs import Said, call
from tests.integration.market.client import sdk
from tests.integration.market.test_convictions import evidence, note, ruled, slashable, worked
from tests.integration.market.test_slash import slash_of
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


async def executed(world: World) -> JobId:
    """The same, after the window."""
    job = await announced(world)
    await later(world)
    return job


async def later(world: World) -> None:
    world.wait(5)
    await world.tick()
    await world.sync()


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


def test_job_slashes__executed__is_shown_to_people_and_programs(
    world: World, tmp_path: Path
) -> None:
    with market(world, executed) as (job, url):
        table = said(tmp_path, url, "job", "slashes", job.hex())
        data = said(tmp_path, url, "job", "slashes", job.hex(), "-o", "json")

    words = ("executed", NAME.hex(), "1.000000 = ", "burned", "announced in", "ended in")
    assert [word for word in words if word not in table.stdout] == []
    (found,) = json.loads(data.stdout)["convictions"]
    assert found["account"] == make_wallet("ann").account.hex()
    assert found["slash"]["evidence"] == NAME.hex()


def test_job_evidence__bundle_that_was_shown__is_the_file(world: World, tmp_path: Path) -> None:
    out = tmp_path / "found.bundle"
    with market(world, announced) as (_, url):
        answer = said(tmp_path, url, "job", "evidence", NAME.hex(), "--to", str(out))
        against = said(tmp_path, url, "job", "evidence", NAME.hex(), "--to", str(out), "--contest")

    assert out.read_bytes() == BUNDLE and "tallystick audit rerun" in answer.stdout
    assert against.exit_code == 3 and "nobody has contested" in against.stderr


@pytest.mark.parametrize("own", [b"", b"a bundle that speaks for ann"])
def test_provider_contest__by_the_convict__stops_the_slash(
    world: World, tmp_path: Path, own: bytes
) -> None:
    home, bundle = tmp_path / "provider", tmp_path / "own.bundle"
    save_wallet(home / "wallet.json", make_wallet("ann"))
    bundle.write_bytes(own)
    with market(world, announced) as (_, url):
        shown = [str(bundle)] if own else []
        world.bundles.says[blob_digest(own)] = world.bundles.says[NAME]
        answer = said(tmp_path, url, "provider", "contest", NAME.hex(), *shown)
    named = blob_digest(own) if own else NAME

    async def judged() -> str:
        await later(world)
        held = await slash_of(world, NAME)
        await judge_contest(NAME, upheld=True, now=world.now, work=world.new_work())
        await later(world)
        assert (held.state, held.contest) == ("contested", named)
        return (await slash_of(world, NAME)).state

    assert "nothing is taken until" in answer.stdout
    assert asyncio.run(judged()) == "dropped"


def test_provider_contest__by_somebody_else_or_without_a_wallet__is_one_line(
    world: World, tmp_path: Path
) -> None:
    save_wallet(tmp_path / "bob" / "wallet.json", make_wallet("bob"))
    with market(world, announced) as (_, url):
        bob, nobody = (
            said(tmp_path, url, "provider", "contest", NAME.hex(), "--home", str(tmp_path / name))
            for name in ("bob", "nobody")
        )
        unknown = said(tmp_path, url, "provider", "contest", Digest(b"n" * 32).hex())

    assert (bob.exit_code, nobody.exit_code, unknown.exit_code) == (4, 3, 3)
    assert "not signed by" in bob.stderr and "no key file" in nobody.stderr
    assert not (tmp_path / "nobody").exists()
