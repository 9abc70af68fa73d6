"""Files that every member of a group has alike, so that one can be had from several of them.

Invariant: equal states give equal files, so holders whose digests agree serve one file.
"""

from dataclasses import dataclass
from typing import Protocol, TypeVar

from contracts.terms.errors import WrongBytes
from contracts.terms.ids import Digest, PeerId, StageIndex, StepNumber
from training.stages.torch_free import StateRoots
from training.transport import calls
from training.transport.calls import StateView, WeightsView
from training.worker.peers import Peers

View = TypeVar("View", bound=StateView | WeightsView)
View_co = TypeVar("View_co", bound=StateView | WeightsView, covariant=True)
"""What a holder says of its file."""


class SharedFile(Protocol[View_co]):
    """A file that all members of a group have, or had: equal bytes at each."""

    @property
    def name(self) -> str:
        """For a reader."""

    def mates(self) -> list[PeerId]:
        """The other members, ascending."""

    async def view(self, peer: PeerId) -> View_co:
        """What a member has; raises NotFound, Unavailable."""

    async def range(self, peer: PeerId, start: int, end: int) -> bytes:
        """Bytes [start, end) of it; raises NotFound, Unavailable."""


@dataclass(frozen=True)
class CheckpointFile:
    """The checkpoint of a group after a round."""

    peers: Peers
    group: StageIndex
    round: StepNumber

    @property
    def name(self) -> str:
        """See `SharedFile.name`."""
        return f"checkpoint of round {self.round}"

    def mates(self) -> list[PeerId]:
        """See `SharedFile.mates`."""
        return self.peers.mates(self.group)

    async def view(self, peer: PeerId) -> StateView:
        """See `SharedFile.view`."""
        request = calls.GetState(job=self.peers.job, group=self.group, round=self.round)
        return await self.peers.view(peer, calls.GET_STATE, request)

    async def range(self, peer: PeerId, start: int, end: int) -> bytes:
        """See `SharedFile.range`."""
        request = calls.GetStateRange(
            job=self.peers.job, group=self.group, round=self.round, start=start, end=end
        )
        return await self.peers.range(peer, calls.GET_STATE_RANGE, request, end - start)


@dataclass(frozen=True)
class WeightsFile:
    """The weights of a group after a round, as a part of the state with one root."""

    peers: Peers
    group: StageIndex
    round: StepNumber
    state_root: Digest
    holders: tuple[PeerId, ...]

    @property
    def name(self) -> str:
        """See `SharedFile.name`."""
        return f"weights of round {self.round}"

    def mates(self) -> list[PeerId]:
        """See `SharedFile.mates`; those that are asked."""
        return list(self.holders)

    async def view(self, peer: PeerId) -> WeightsView:
        """See `SharedFile.view`; raises WrongBytes for those of another state."""
        request = calls.GetWeights(job=self.peers.job, group=self.group, round=self.round)
        view = await self.peers.view(peer, calls.GET_WEIGHTS, request)
        root = StateRoots(view.weights_root, view.moments_root, view.counter).state
        if root != self.state_root:
            raise WrongBytes(
                f"{self.name} of another state", expected=self.state_root.hex(), actual=root.hex()
            )
        return view

    async def range(self, peer: PeerId, start: int, end: int) -> bytes:
        """See `SharedFile.range`."""
        request = calls.GetWeightsRange(
            job=self.peers.job, group=self.group, round=self.round, start=start, end=end
        )
        return await self.peers.range(peer, calls.GET_WEIGHTS_RANGE, request, end - start)
