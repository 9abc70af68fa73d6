"""An auditor's bundle becomes a slash by itself, and goes when nobody needs it any more.

The market is the real API; bundles are files as audits leave them, with any bytes in
them: what they show is nobody's business here.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from contracts.keys.store import load_or_create_session
from contracts.keys.wallet import Session
from contracts.terms.amounts import BaseUnits
from contracts.terms.digest import blob_digest
from contracts.terms.encoding import encode
from contracts.terms.errors import Unavailable
from contracts.terms.ids import Digest, JobId, PeerId
from market.api.app import make_app
from market.service.rows import AuditorRow, ConvictionRow, SlashRow
from tallystick.provider.folder import PeerFile, save_peer_file
from tallystick.provider.slashes import Slashes, bundles_in
from tallystick.sdk.client import MarketClient
from tests.integration.market.test_convictions import (
    AUDITORS,
    note,
    report_of,
    ruled,
    session_of,
    slashable,
    worked,
)
from tests.support.history import JobMaker, make_wallet
from tests.support.market_world import World

TEXT = b"all that a replay took"


class Wire(httpx.AsyncBaseTransport):
    """To the market; `before` is done before each request, and may break it."""

    def __init__(self, world: World) -> None:
        self._inner = httpx.ASGITransport(make_app(world.api()))
        self.before: Callable[[httpx.Request], Awaitable[None]] | None = None
        self.asked: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See `httpx.AsyncBaseTransport`."""
        self.asked.append(f"{request.method} {request.url.path.split('/')[-1]}")
        if self.before is not None:
            await self.before(request)
        return await self._inner.handle_async_request(request)


def lease_of(home: Path, job: JobId) -> Path:
    """The folder of a lease in a provider's home."""
    folder = home / "leases" / ("1e" * 32)
    folder.mkdir(parents=True, exist_ok=True)
    save_peer_file(folder, PeerFile("http://market", job.hex(), "1e" * 32, 1, 1, 1))
    return folder


def bundle_in(folder: Path, subject: Digest, text: bytes = TEXT) -> Path:
    path = folder / "evidence" / f"{subject.hex()}.bundle"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    return path


class Auditor:
    """The agent of one of the auditors that found a mismatch, and the folder of its lease."""

    def __init__(self, world: World, job: JobId, folder: Path, name: str = "out1") -> None:
        self.wire, self.folder = Wire(world), lease_of(folder / name, job)
        self.name, self._world, self._job, self.said = name, world, job, list[str]()
        (self.folder / "session.key").write_bytes(session_of(name).private_key.private_bytes_raw())
        (self.folder / "session.key").chmod(0o600)
        client, account = MarketClient("http://market", transport=self.wire), make_wallet("nobody")
        self.slashes = Slashes(client, folder / name, account.account, self.said.append)

    def found(self, subject: Digest, text: bytes = TEXT) -> Path:
        """Leave a bundle, as an audit does."""
        path = bundle_in(self.folder, subject, text)
        showable(self._world, self._job, subject, session_of(self.name).peer, text)
        return path

    @property
    def events(self) -> list[str]:
        """What was told, without fields."""
        return [line.split()[0] for line in self.said]


def showable(world: World, job: JobId, subject: Digest, auditor: PeerId, text: bytes) -> None:
    """The market will find that this is a bundle of an auditor about a subject."""
    name = world.show(text, job, subject, auditor=auditor, report=report_of(auditor))
    del world.blobs.blobs[name]


async def registered(world: World, name: str, session: Session) -> None:
    """The market knows whose audit key it is, so that blobs may be stored under it."""
    async with world.new_work() as work:
        row = AuditorRow(make_wallet(name).account, session.key, "cpu", world.now, b"")
        await work[AuditorRow].put(row)


async def convicted(world: World) -> tuple[JobMaker, JobId, Digest]:
    """A job in which the work of its one peer is convicted by `out1` and `out2`."""
    maker, commit = await worked(world)
    for name in AUDITORS:
        await registered(world, name, session_of(name))
    await note(world, ruled(maker, slashable(maker, commit.digest())))
    return maker, maker.spec.job(), commit.digest()


async def with_a_bundle(world: World, folder: Path) -> tuple[JobId, Digest, Auditor]:
    """The same, and an auditor who has a bundle about it."""
    _, job, subject = await convicted(world)
    auditor = Auditor(world, job, folder)
    auditor.found(subject)
    return job, subject, auditor


async def slashes(world: World) -> list[SlashRow]:
    return await world.rows(SlashRow)


async def test_look__convicted_and_nobody_has_shown_it__uploads_and_names_the_bundle(
    world: World, tmp_path: Path
) -> None:
    job, subject, auditor = await with_a_bundle(world, tmp_path)

    await auditor.slashes.show()

    (row,) = await slashes(world)
    assert (row.job, row.evidence, row.state) == (job, blob_digest(TEXT), "convicted")
    assert world.blobs.blobs[row.evidence] == TEXT
    told = f"evidence_shown subject={subject.hex()} bundle={row.evidence.hex()}"
    assert auditor.said == [told]
    assert bundles_in(auditor.folder)  # for a restart, until the slash has ended


async def test_look__started_again__uploads_nothing_twice(world: World, tmp_path: Path) -> None:
    _, job, subject = await convicted(world)
    Auditor(world, job, tmp_path).found(subject)
    for _ in range(2):
        await Auditor(world, job, tmp_path).slashes.show()
    again = Auditor(world, job, tmp_path)

    for _ in range(3):
        await again.slashes.show()

    assert len(await slashes(world)) == 1
    assert set(again.wire.asked) == {"GET convictions"} and again.said == []


async def test_look__slash_by_the_bundle_shown_was_dropped__shows_its_own_too(
    world: World, tmp_path: Path
) -> None:
    _, job, subject = await convicted(world)
    first, second = (Auditor(world, job, tmp_path, name) for name in ("out2", "out1"))
    first.found(subject)
    second.found(subject, b"another bundle")
    await first.slashes.show()
    await second.slashes.show()
    waits = list(second.events)

    async with world.new_work() as work:
        (row,) = await work[SlashRow].where()
        await work[SlashRow].put(replace(row, state="dropped"))
    await second.slashes.show()

    assert waits == [] and second.events == ["evidence_shown"]
    assert (await slashes(world))[0].evidence == blob_digest(TEXT)


async def test_look__not_convicted_or_found_by_others__shows_nothing(
    world: World, tmp_path: Path
) -> None:
    _, job, subject = await convicted(world)
    innocent, stranger = (Auditor(world, job, tmp_path, name) for name in ("out1", "stranger"))
    innocent.found(Digest(b"i" * 32))
    stranger.found(subject)

    for auditor in (innocent, stranger):
        await auditor.slashes.show()

    assert await slashes(world) == [] and innocent.said == stranger.said == []


async def test_look__market_is_away_for_a_while__shows_it_when_it_is_back(
    world: World, tmp_path: Path
) -> None:
    _, _, auditor = await with_a_bundle(world, tmp_path)
    broken = iter([False, True])

    async def break_once(_request: httpx.Request) -> None:
        if next(broken, False):
            raise httpx.ConnectError("away")

    auditor.wire.before = break_once
    with pytest.raises(Unavailable):
        await auditor.slashes.show()
    await auditor.slashes.show()

    assert auditor.events == ["evidence_shown"] and len(await slashes(world)) == 1


# --------------------------------------------------------------------------------- agents


class Owner:
    """An agent's view of slashes, and what it said."""

    def __init__(self, world: World, home: Path, name: str = "ann") -> None:
        self.said: list[str] = []
        self.wire = Wire(world)
        client = MarketClient("http://market", transport=self.wire)
        self.slashes = Slashes(client, home, make_wallet(name).account, self.said.append)


async def later(world: World, seconds: int = 5) -> None:
    world.wait(seconds)
    await world.tick()
    await world.sync()


async def test_slashes__own_conviction__is_told_at_each_change_with_what_can_be_done(
    world: World, tmp_path: Path
) -> None:
    job, _, auditor = await with_a_bundle(world, tmp_path)
    owner = Owner(world, tmp_path / "ann")
    accused = list[bool]()

    for happens in (auditor.slashes.show, *(lambda: later(world),) * 4):
        for _ in range(2):
            await owner.slashes.look()
        accused.append(owner.slashes.is_accused)
        await happens()
    await owner.slashes.look()

    name = blob_digest(TEXT).hex()
    noted, shown, announced, burned = owner.said
    assert "noted" in noted and "1.000000 tokens of stake are at risk" in noted
    assert shown.startswith(f"convicted in job {job.hex()[:12]}: convicted")
    assert "burned from 20" in announced and "UTC on, if it is not dropped" in announced
    assert "1.000000 tokens will be taken" in announced and f"job evidence {name}" in announced
    assert "burned: 1.000000 tokens of stake, transaction 0x" in burned
    assert all(accused[:3]) and not owner.slashes.is_accused


async def test_slashes__bundle_of_a_slash__stays_until_it_has_ended(
    world: World, tmp_path: Path
) -> None:
    job, subject, auditor = await with_a_bundle(world, tmp_path)
    await auditor.slashes.show()
    path, owner = bundle_in(lease_of(tmp_path, job), subject), Owner(world, tmp_path)
    seen = []

    for _ in range(5):
        await owner.slashes.show()
        seen.append(((await slashes(world))[0].state, path.exists()))
        await later(world)

    assert ("announced", True) in seen and seen[-1] == ("burned", False)


async def test_look__audit_from_outside__is_shown_under_the_key_of_audits(
    world: World, tmp_path: Path
) -> None:
    maker, commit = await worked(world)
    job, subject, owner = maker.spec.job(), commit.digest(), Owner(world, tmp_path, "out")
    folder = tmp_path / "audits" / job.hex()
    bundle_in(folder, subject)
    session = load_or_create_session(tmp_path / "audit.key")
    await registered(world, "out", session)
    ann = maker.members[0].wallet.account
    row = ConvictionRow(
        job, subject, 1, ann, BaseUnits(1),
        encode([session.peer]),
        encode([report_of(session.peer)]),
    )  # fmt: skip
    showable(world, job, subject, session.peer, TEXT)
    async with world.new_work() as work:
        await work[ConvictionRow].add(row)

    await owner.slashes.show()

    assert len(await slashes(world)) == 1
    assert [line.split()[0] for line in owner.said] == ["evidence_shown"]
