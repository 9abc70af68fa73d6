"""A file from several holders: all ranges, whoever serves them, whatever some of them do."""

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from contracts.terms.digest import blob_digest
from contracts.terms.errors import NotFound, PeerUnreachable, Unavailable, WrongBytes
from contracts.terms.ids import ZERO_DIGEST, PeerId, StageIndex, StepNumber
from tests.support.history import make_digest
from training.telling import tell_nobody
from training.transport.calls import FileView
from training.worker.files import Download, SharedFile, holders_of
from training.worker.peers import Peers

FILE = bytes(range(256)) * 4
ANN, BOB, CEM = (PeerId(name.encode() * 16) for name in ("an", "bo", "ce"))


class Holders:
    """Members with a file each, some of whom fail after a number of ranges."""

    def __init__(self, files: dict[PeerId, bytes], patience: dict[PeerId, int]) -> None:
        self.files, self.patience = files, patience
        self.served: Counter[PeerId] = Counter()

    job = make_digest("job")

    def mates(self, _group: StageIndex) -> list[PeerId]:
        """See `Peers.mates`."""
        return sorted(self.files)

    async def view(self, peer: PeerId, _method: Any, _request: Any) -> FileView:
        """See `Peers.view`."""
        return view_of(self.files[peer])

    async def range(self, peer: PeerId, _method: Any, request: Any, _size: int) -> bytes:
        """See `Peers.range`."""
        await asyncio.sleep(0)  # the other holders have their turn
        if self.served[peer] >= self.patience.get(peer, 10**9):
            raise PeerUnreachable("gone")
        self.served[peer] += 1
        return self.files[peer][request.start : request.end]


def view_of(file: bytes) -> FileView:
    return FileView(digest=blob_digest(file), num_bytes=len(file), state_root=ZERO_DIGEST)


def shared(holders: Holders) -> SharedFile:
    return SharedFile(cast(Peers, holders), "checkpoint", StageIndex(0), StepNumber(1))


def download(holders: Holders, folder: Path, file: bytes = FILE) -> Download:
    return Download(shared(holders), view_of(file), folder, tell_nobody, range_bytes=100)


def holders(*names: PeerId, **patience: int) -> Holders:
    known = {"ann": ANN, "bob": BOB, "cem": CEM}
    return Holders(
        {name: FILE for name in names}, {known[name]: number for name, number in patience.items()}
    )


async def test_download__a_holder_goes_away__the_others_serve_the_rest(tmp_path: Path) -> None:
    class Patient(Holders):
        """Cem serves nothing until Ann has gone, however quick the disk of each range is."""

        ann_is_gone = asyncio.Event()

        async def range(self, peer: PeerId, method: Any, request: Any, size: int) -> bytes:
            """See `Peers.range`."""
            if peer == CEM:
                await self.ann_is_gone.wait()
            try:
                return await super().range(peer, method, request, size)
            except PeerUnreachable:
                if peer == ANN:
                    self.ann_is_gone.set()
                raise

    all_three = Patient({ANN: FILE, BOB: FILE, CEM: FILE}, {ANN: 2, BOB: 0})

    path = await download(all_three, tmp_path / "d").file([ANN, BOB, CEM])

    assert path.read_bytes() == FILE
    assert all_three.served == {ANN: 2, CEM: 9}


async def test_download__everybody_goes_away_and_returns__only_the_rest_is_fetched(
    tmp_path: Path,
) -> None:
    with pytest.raises(Unavailable, match="8 ranges"):
        await download(holders(ANN, ann=3), tmp_path / "d").file([ANN])
    again = holders(BOB)

    path = await download(again, tmp_path / "d").file([BOB])

    assert path.read_bytes() == FILE
    assert again.served[BOB] == 8


async def test_download__a_holder_serves_other_bytes__refused_and_dropped(tmp_path: Path) -> None:
    liar = Holders({ANN: FILE, BOB: FILE[::-1]}, {})

    with pytest.raises(WrongBytes):
        await download(liar, tmp_path / "d").file([ANN, BOB])

    assert not (tmp_path / "d").exists()
    assert (await download(liar, tmp_path / "d").file([ANN])).read_bytes() == FILE


async def test_holders_of__two_files__that_of_most_members_first() -> None:
    members = Holders({ANN: b"other", BOB: FILE, CEM: FILE}, {})

    found = await holders_of(shared(members), len(FILE))

    assert [(view.num_bytes, peers) for view, peers in found] == [
        (len(FILE), [BOB, CEM]),
        (5, [ANN]),
    ]


async def test_holders_of__file_larger_than_any_state__is_as_none() -> None:
    class Boasting(Holders):
        """Ann says that her file is larger than a disk."""

        async def view(self, peer: PeerId, method: Any, request: Any) -> FileView:
            """See `Peers.view`."""
            view = await super().view(peer, method, request)
            return view.model_copy(update={"num_bytes": 2**53 - 1}) if peer == ANN else view

    alone, both = Boasting({ANN: FILE}, {}), Boasting({ANN: FILE, BOB: FILE}, {})

    found = await holders_of(shared(both), len(FILE))

    assert [(view.num_bytes, peers) for view, peers in found] == [(len(FILE), [BOB])]
    with pytest.raises(NotFound):
        await holders_of(shared(alone), len(FILE))


async def test_holders_of__no_member_else__unavailable() -> None:
    with pytest.raises(Unavailable):
        await holders_of(shared(Holders({}, {})), len(FILE))
