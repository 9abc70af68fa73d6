"""What of a lease's folder goes when, and what stays as long as it may be asked for?"""

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from market.bodies.base import Problem
from market.bodies.routes import GET_CHECKPOINTS, GET_JOB, GET_LEASE
from tallystick.provider.disk import BULK, KEEP_MODEL, Ended, LeaseFolders, remove
from tallystick.sdk.client import MarketClient
from tests.support.history import DOMAIN, make_spec, make_wallet

KEPT = ["accept.msgpack", "beacons.v2", "journal.sqlite", "session.key"]


def folder_of(home: Path, *, bundle: bool = False) -> Path:
    """A lease's folder after a job: bulk, two checkpoints, and what is small."""
    folder = home / "lease"
    for name in (*BULK, "groups/*/checkpoints"):
        place = folder / name.replace("*", "01")
        place.mkdir(parents=True)
        (place / "00000003").write_bytes(b"x")
    (folder / "evidence").mkdir()
    (folder / "groups" / "01" / "checkpoints" / "00000001").write_bytes(b"x")
    for name in KEPT:
        (folder / name).write_bytes(b"x")
    if bundle:
        (folder / "evidence" / f"{'ab' * 32}.bundle").write_bytes(b"x")
    return folder


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_remove__market_has_the_weights__all_but_what_a_slash_may_need_goes(
    tmp_path: Path,
) -> None:
    folder = folder_of(tmp_path)

    remove(folder, Ended(is_over=True, has_weights=True, is_settled=False))

    assert left(folder) == KEPT


@pytest.mark.parametrize("is_settled", [False, True])
def test_remove__nobody_has_the_weights__the_newest_checkpoint_stays_for_a_week(
    tmp_path: Path, is_settled: bool
) -> None:
    folder = folder_of(tmp_path)
    ended = Ended(is_over=True, has_weights=False, is_settled=is_settled)
    (newest,) = folder.glob("groups/01/checkpoints/00000003")
    written = newest.stat().st_mtime

    remove(folder, ended, now=written)
    first = left(folder)
    remove(folder, ended, now=written + (KEEP_MODEL + timedelta(seconds=1)).total_seconds())

    assert first == ["00000003", *KEPT]
    assert left(folder) == ([] if is_settled else KEPT)


@pytest.mark.parametrize("is_at_work", [True, False])
async def test_clear__shards_of_jobs__go_once_nobody_works(
    tmp_path: Path, is_at_work: bool
) -> None:
    shard = tmp_path / "blobs" / ("ab" * 32)
    for folder in (shard.parent, tmp_path / "leases" / ("cd" * 32)):
        folder.mkdir(parents=True)
    shard.write_bytes(b"x")

    async with MarketClient("http://market", transport=httpx.MockTransport(unknown)) as client:
        await LeaseFolders(client, tmp_path).clear(lambda folder: is_at_work)

    assert shard.exists() == is_at_work


@pytest.mark.parametrize("step", [8, 12])
async def test_clear__market_has_weights__the_newest_checkpoint_goes_once_they_are_the_last(
    tmp_path: Path, step: int
) -> None:
    folder = folder_of(tmp_path).rename(tmp_path / ("ab" * 32))
    (tmp_path / "leases").mkdir()
    folder = folder.rename(tmp_path / "leases" / folder.name)
    spec = make_wallet("poster").sign(make_spec(), DOMAIN).encoded()
    answers: dict[object, Any] = {
        GET_LEASE: SimpleNamespace(state="ended", job=bytes(32), spec=spec),
        GET_JOB: SimpleNamespace(progress=SimpleNamespace(step=12)),
        GET_CHECKPOINTS: SimpleNamespace(
            checkpoints=[SimpleNamespace(stage=0, step=step, num_bytes=9)]
        ),
    }

    async def call(route: object, **_: object) -> Any:
        return answers[route]

    client = cast(MarketClient, SimpleNamespace(call=call))
    await LeaseFolders(client, tmp_path).clear(lambda folder: False)

    assert left(folder) == ([] if step == 12 else ["00000003"]) + KEPT


def unknown(request: httpx.Request) -> httpx.Response:
    """A market that was set up anew."""
    problem = Problem(type="", title="", status=404, code="not_found", detail="", data={})
    return httpx.Response(404, content=problem.json_bytes())


def test_remove__provider_is_settled__all_goes_unless_a_bundle_is_still_shown(
    tmp_path: Path,
) -> None:
    ended = Ended(is_over=True, has_weights=True, is_settled=True)
    gone, shown = folder_of(tmp_path / "a"), folder_of(tmp_path / "b", bundle=True)

    for folder in (gone, shown):
        remove(folder, ended)

    assert not gone.exists()
    assert left(shown) == [f"{'ab' * 32}.bundle", *KEPT]
