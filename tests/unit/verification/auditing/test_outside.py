"""Whom does an auditor from outside ask for weights, and what does it take?"""

from pathlib import Path
from typing import Any, cast

import pytest

from contracts.terms.digest import BlobHasher
from contracts.terms.errors import NotFound, WrongBytes
from contracts.terms.ids import Digest, PeerId, StageIndex
from contracts.terms.work import WorkClaim
from tests.support.history import JobMaker, make_digest
from training.telling import tell_nobody
from training.transport import calls
from training.worker.peers import Peers
from verification.auditing.outside import DownloadedWeights

ROOT = make_digest("state")
RIGHT, WRONG = b"right", b"wrong"


class Group:
    """Satisfies what is asked of `Peers`: a doer and its mates, and the file of each."""

    def __init__(self, files: dict[PeerId, bytes]) -> None:
        self.job, self._files, self.asked = make_digest("job"), files, list[PeerId]()

    def mates(self, _group: StageIndex) -> list[PeerId]:
        """See `Peers.mates`."""
        return sorted(self._files)

    async def view(self, peer: PeerId, _method: Any, _request: Any) -> calls.FileView:
        """See `Peers.view`."""
        self.asked.append(peer)
        if not (data := self._files[peer]):
            raise NotFound("no weights here")
        hasher = BlobHasher()
        hasher.update(data)
        return calls.FileView(
            digest=hasher.digest(),
            num_bytes=len(data),
            state_root=ROOT,
        )

    async def range(self, peer: PeerId, _method: Any, request: Any, _size: int) -> bytes:
        """See `Peers.range`."""
        return self._files[peer][request.start : request.end]


async def check(file: Path, _root: Digest) -> None:
    if file.read_bytes() != RIGHT:
        raise WrongBytes("weights of another state")


def claim_of(doer: PeerId) -> WorkClaim:
    maker = JobMaker()
    claim, _ = maker.claim(maker.members[0])
    return claim.model_copy(update={"peer": doer, "base": ROOT})


DOER, MATE, OTHER = (PeerId(make_digest(name)) for name in ("doer", "mate", "other"))


@pytest.mark.parametrize(
    ("files", "asked"),
    [
        ({DOER: WRONG, MATE: RIGHT, OTHER: WRONG}, {MATE, OTHER}),
        ({DOER: RIGHT, MATE: WRONG, OTHER: b""}, {MATE, OTHER, DOER}),
    ],
)
async def test_weights__whose_work_is_audited__is_asked_only_if_nobody_else_has_them(
    tmp_path: Path, files: dict[PeerId, bytes], asked: set[PeerId]
) -> None:
    group = Group(files)
    weights = weights_of(group, tmp_path)

    path = await weights(claim_of(DOER))

    assert path.read_bytes() == RIGHT and set(group.asked) == asked
    assert await weights(claim_of(DOER)) == path and len(group.asked) == len(asked)


async def test_weights__everybody_offers_another_state__none_are_taken(tmp_path: Path) -> None:
    with pytest.raises(WrongBytes):
        await weights_of(Group({DOER: WRONG, MATE: WRONG}), tmp_path)(claim_of(DOER))

    assert not [*tmp_path.rglob("*.weights")]


def weights_of(group: Group, folder: Path) -> DownloadedWeights:
    """Weights of the group, downloaded into a folder."""
    return DownloadedWeights(
        cast(Peers, group), StageIndex(0), folder, check=check, most_bytes=99, tell=tell_nobody
    )
