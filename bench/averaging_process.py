"""One process of the job of `bench.averaging`: coordinator or peer.

All of it is the real thing but the arithmetic of an item, which takes no time: its gradient is
given, drawn numbers times (its place in the round + 1). So what the processes do is average. Papers
are made again by every process, because keys are deterministic; the coordinator's address lies in
the folder. `python -m bench.averaging_process ROLE FOLDER`, after `job.json` was written there.
"""

import asyncio
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from typing_extensions import Buffer

from bench.measuring import Agreed, memory_of
from contracts.terms.amounts import Flops
from contracts.terms.digest import tensor_digest
from contracts.terms.errors import InvariantBroken
from contracts.terms.ids import ChunkIndex, StageIndex
from contracts.terms.messages import GradientCodecName, Seal
from tests.support.fakes.coordinator import MemoryFeed, MemoryLimits, MemoryRoster, MemoryWishes
from tests.support.fakes.counting import NUM_WEIGHTS, CountingState, CountingStrategy, rows_of
from tests.support.history import DOMAIN
from tests.support.swarm_job import COORDINATOR, Papers, make_papers
from tests.support.swarm_process import LOOPBACK, AddressFile
from training.averaging.slices import Slice
from training.averaging.sums import mean_slice, slice_of, vector_of
from training.coordinator.run import CoordinatedJob, Signer, World, run_coordinator
from training.stages.exact import set_threads, to_wire
from training.stages.torch_free import chunk_bounds
from training.strategies.every_step.recipe import output_of
from training.strategies.every_step.rules import EveryStep
from training.strategies.port import Bucket, Compute, Draft, Items, Piece, Shard, State, Weights
from training.telling import JsonLines, Tell
from training.transport.calls import METHODS
from training.transport.grpc_adapter import GrpcTransport
from training.worker.ports import Arithmetic
from training.worker.run import Connection, Membership, run_worker

NUM_CHUNKS = 8
UNITS_A_PEER = 2
SEED = 1
CLOSE_TO_EXACT: dict[GradientCodecName, float] = {"none": 1e-6, "float16": 2e-3, "bfloat16": 2e-2}

EXCHANGE_TIMEOUT = 10_000  # ms; longer than anything takes, so that it shows what waits for it
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
        """Items of a round."""
        return self.num_peers * UNITS_A_PEER

    @property
    def elements(self) -> dict[Bucket, int]:
        """Of each bucket."""
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
            exchange_timeout=EXCHANGE_TIMEOUT,
            redo_after=REDO_AFTER,
            item_flops=(Flops(10**12),),
        )


class GivenStrategy(CountingStrategy):
    """A strategy whose gradient is long and costs nothing; its state is a sample of the average."""

    def __init__(self, job: AveragingJob, compute: Compute) -> None:
        super().__init__(job.papers().spec.message, compute)
        self._job = job
        self._base = torch.randn(job.num_elements, generator=torch.Generator().manual_seed(SEED))
        self._bounds = chunk_bounds(job.num_elements, NUM_CHUNKS)

    def commit(self, items: Items) -> Draft:
        """See `Strategy.commit`."""
        scale = sum(item % self._job.num_units + 1 for item in items) / len(items)
        made = (slice_of(self._base[a:b] * scale, self._job.codec) for a, b in self._bounds)
        return Draft(super().commit(items).leaves, (_piece(n, each) for n, each in enumerate(made)))

    def reduce(self, bucket: Bucket, shards: Iterator[Shard], weights: Weights) -> Piece:
        """See `Strategy.reduce`."""
        parts, each = (shard.data for shard in shards), [weight for _, weight in weights.values()]
        return _piece(bucket[1], mean_slice(parts, each, self._job.codec))

    def apply(self, state: State, buckets: Iterator[Buffer], seal: Seal) -> CountingState:
        """See `Strategy.apply`; refuses what is not the mean over all items of a round."""
        assert isinstance(state, CountingState)
        average = torch.cat([vector_of(each, self._job.codec)[::97].clone() for each in buckets])
        exact = torch.cat([self._base[a:b:97] for a, b in self._bounds])
        exact *= (self._job.num_units + 1) / 2
        error = float((average - exact).norm() / exact.norm())
        if error > CLOSE_TO_EXACT[self._job.codec]:
            raise InvariantBroken(f"an average that is {error:.1e} off")
        named = tensor_digest("float32", average.shape, to_wire(average))
        state.weights = [float(byte) for byte in named[:NUM_WEIGHTS]]
        state.counter += 1
        return state


def _piece(number: int, made: Slice) -> Piece:
    return output_of(ChunkIndex(number), made), made.data


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
                    EveryStep(),
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
            slice_of(torch.ones(1000))  # what torch loads when it first computes is no exchange's
            tell("memory", resident=memory_of(os.getpid(), "status", "VmRSS"))
            await run_worker(
                folder / role,
                Membership(papers.spec, papers.signed_opening(), papers.leases[role], DOMAIN),
                Connection(session, transport, address.locate, listen=LOOPBACK),
                Arithmetic(partial(GivenStrategy, job), rows_of, job.elements),
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
