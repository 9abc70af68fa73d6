"""One process of the job of `bench.averaging`: coordinator or peer.

All of it is the real thing but the arithmetic of a unit, which takes no time: its gradient is
given, `NUM` numbers times (unit + 1). So what the processes do is average. Papers are made again by
every process, because keys are deterministic; the coordinator's address lies in the folder.
`python -m bench.averaging_process ROLE FOLDER`, after `job.json` was written there.
"""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from typing_extensions import Buffer

from bench.measuring import Agreed
from contracts.terms.amounts import Flops
from contracts.terms.chunks import Chunk
from contracts.terms.digest import tensor_digest
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import ChunkIndex, StageIndex
from contracts.terms.messages import GradientCodecName
from tests.support.fakes.coordinator import MemoryFeed, MemoryLimits, MemoryRoster, MemoryWishes
from tests.support.fakes.counting import NUM_WEIGHTS, CountingCompute
from tests.support.history import DOMAIN
from tests.support.swarm_job import COORDINATOR, Papers, make_papers
from tests.support.swarm_process import LOOPBACK, AddressFile
from training.averaging.slices import Slice
from training.averaging.sums import mean_slice, slice_of, vector_of
from training.coordinator.run import CoordinatedJob, Signer, World, run_coordinator
from training.stages.exact import set_threads, to_wire
from training.stages.torch_free import chunk_bounds
from training.telling import JsonLines, Tell
from training.transport.calls import METHODS
from training.transport.grpc_adapter import GrpcTransport
from training.worker.run import Connection, Membership, run_worker

NUM_CHUNKS = 8
UNITS_A_PEER = 2
SEED = 1
CLOSE_TO_EXACT: dict[GradientCodecName, float] = {"none": 1e-6, "float16": 2e-3, "bfloat16": 2e-2}

REDO_AFTER = 300  # ms; a session that ends is noticed within 0.3 s on one machine


@dataclass(frozen=True)
class AveragingJob(Agreed):
    """What all processes of a job have to agree on."""

    num_peers: int
    num_elements: int
    num_steps: int
    codec: GradientCodecName

    @property
    def peers(self) -> tuple[str, ...]:
        """Roles of the peers."""
        return tuple(f"peer-{number}" for number in range(self.num_peers))

    @property
    def num_units(self) -> int:
        """Units of a step."""
        return self.num_peers * UNITS_A_PEER

    @property
    def elements(self) -> dict[Chunk, int]:
        """Of each chunk."""
        bounds = chunk_bounds(self.num_elements, NUM_CHUNKS)
        return {(StageIndex(0), ChunkIndex(n)): end - at for n, (at, end) in enumerate(bounds)}

    def papers(self) -> Papers:
        """Who signs what."""
        return make_papers(
            *self.peers,
            steps=self.num_steps,
            units_per_step=self.num_units,
            rows_per_unit=1,
            chunks=NUM_CHUNKS,
            checkpoint_every=1,  # of a few bytes; averages that all have applied are then dropped
            validate_every=self.num_steps,
            gradient_codec=self.codec,
            redo_after=REDO_AFTER,
            item_flops=(Flops(10**12),),
        )


class GivenCompute(CountingCompute):
    """`ports.Compute` whose gradient is long and costs nothing; its state is the last average."""

    def __init__(self, job: AveragingJob) -> None:
        super().__init__(NUM_CHUNKS)
        self._job = job
        self._base = torch.randn(job.num_elements, generator=torch.Generator().manual_seed(SEED))

    def num_elements(self, chunk: ChunkIndex) -> int:
        """See `Compute.num_elements`."""
        return self._job.elements[StageIndex(0), chunk]

    def gradient(self) -> tuple[Slice, ...]:
        """See `Compute.gradient`."""
        scale = sum(unit + 1 for unit in self.units) / len(self.units)
        bounds = chunk_bounds(len(self._base), NUM_CHUNKS)
        return tuple(slice_of(self._base[a:b] * scale, self._job.codec) for a, b in bounds)

    def mean(
        self, parts: Sequence[Buffer], weights: Sequence[int], totals: Sequence[int] = ()
    ) -> Slice:
        """See `Compute.mean`."""
        return mean_slice(parts, weights, self._job.codec, totals=totals)

    def apply(self, chunks: Sequence[Buffer], sealed_norm: int) -> None:
        """See `Compute.apply`; refuses what is not the mean over all units."""
        average = torch.cat([vector_of(chunk, self._job.codec) for chunk in chunks])
        exact = self._base[::97] * ((self._job.num_units + 1) / 2)
        error = float((average[::97] - exact).norm() / exact.norm())
        if error > CLOSE_TO_EXACT[self._job.codec]:
            raise InvariantBroken(f"an average that is {error:.1e} off")
        named = tensor_digest("float32", average.shape, to_wire(average))
        self.weights = [float(byte) for byte in named[:NUM_WEIGHTS]]
        self.counter += 1
        self.begin_step()


async def run(role: str, folder: Path, tell: Tell) -> None:
    """Be `role` until the job is over."""
    job, address = AveragingJob.read(folder), AddressFile(folder)
    papers = job.papers()
    session = papers.session if role == COORDINATOR else papers.members[role].session
    transport = GrpcTransport(session.private_key, METHODS)
    try:
        if role == COORDINATOR:
            await run_coordinator(
                folder / role,
                CoordinatedJob(
                    papers.spec,
                    papers.opening,
                    Signer(papers.coordinator, session, DOMAIN),
                    job.elements,
                ),
                World(
                    transport=transport,
                    listen=LOOPBACK,
                    announce=address.announce,
                    feed=MemoryFeed(),
                    roster=MemoryRoster(tuple(papers.leases.values())),
                    wishes=MemoryWishes(),
                    limits=MemoryLimits(),
                ),
                tell,
            )
        else:
            compute = GivenCompute(job)
            await run_worker(
                folder / role,
                Membership(papers.spec, papers.signed_opening(), papers.leases[role], DOMAIN),
                Connection(session, transport, address.locate, listen=LOOPBACK),
                lambda stage: compute,
                tell,
            )
    finally:
        await transport.close()


def main() -> None:
    """Run one role; the log has a line for whatever it has done."""
    role, folder = sys.argv[1], Path(sys.argv[2])
    set_threads(1)
    with (folder / "log" / f"{role}.jsonl").open("a") as stream:
        asyncio.run(run(role, folder, JsonLines(stream, process=role)))


if __name__ == "__main__":
    main()
