"""Files that every member of a group has alike, so that one can be had from several of them.

Invariant: equal states give equal files, so holders whose digests agree serve one file.
"""

from dataclasses import dataclass
from typing import Literal

from contracts.terms.errors import WrongBytes
from contracts.terms.ids import ZERO_DIGEST, Digest, PeerId, StageIndex, StepNumber
from training.transport import calls
from training.worker.peers import Peers

_VIEWS = {"checkpoint": calls.GET_STATE, "weights": calls.GET_WEIGHTS}
_RANGES = {"checkpoint": calls.GET_STATE_RANGE, "weights": calls.GET_WEIGHTS_RANGE}


@dataclass(frozen=True)
class SharedFile:
    """The checkpoint of a group after a round, or the weights that are a part of that state."""

    peers: Peers
    what: Literal["checkpoint", "weights"]
    group: StageIndex
    round: StepNumber
    state_root: Digest = ZERO_DIGEST  # under which weights are to lie
    holders: tuple[PeerId, ...] | None = None  # who is asked; None: all other members of the group

    @property
    def name(self) -> str:
        """For a reader."""
        return f"{self.what} of round {self.round}"

    def mates(self) -> list[PeerId]:
        """Who is asked."""
        return self.peers.mates(self.group) if self.holders is None else list(self.holders)

    async def view(self, peer: PeerId) -> calls.FileView:
        """What a member has; raises NotFound, Unavailable, WrongBytes: it is of another state."""
        request = calls.GetFile(job=self.peers.job, group=self.group, round=self.round)
        view = await self.peers.view(peer, _VIEWS[self.what], request)
        if view.state_root != self.state_root:
            wanted, said = self.state_root.hex(), view.state_root.hex()
            raise WrongBytes(f"{self.name} of another state", expected=wanted, actual=said)
        return view

    async def range(self, peer: PeerId, start: int, end: int) -> bytes:
        """Bytes [start, end) of it; raises NotFound, Unavailable."""
        request = calls.GetFileRange(
            job=self.peers.job, group=self.group, round=self.round, start=start, end=end
        )
        return await self.peers.range(peer, _RANGES[self.what], request, end - start)
