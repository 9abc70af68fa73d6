"""Losing any process of a swarm costs seconds and changes nothing (docs/architecture.md 6).

One job of three stages with two peers each, or of six replicas that take local steps; a process
gets SIGKILL in each row of `ROWS`. A row names a line of a log. The process that tells it has a
failpoint there: it ends itself at that line (so what the line says is stored, and nobody has heard
of it), or it stops at that line and the victim is killed meanwhile (what the victim sent has
arrived, and nothing came after it). Losses must be those of a plain run in one process within 1e-4
(of local steps: weights those of a plain loop over what the seals merge, bit by bit), no item may
be lost or sealed twice, and all money must arrive.
"""

import asyncio
import signal
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.governance.job import JobHistory, follow
from contracts.governance.rounds import merge_of
from contracts.terms.ids import Digest, JobId
from contracts.terms.messages import Seal
from contracts.terms.signatures import Signed
from contracts.terms.typed_data import Domain
from contracts.terms.work import WorkClaim
from market.bodies.jobs import JobView
from market.bodies.routes import GET_NETWORK
from tallystick.sdk.submit import Submitted
from tallystick.up.processes import Identity, identify, send
from tests.numerics.plain_local import Plain
from tests.support.corpora import write_blobs
from tests.support.fakes.blobs import FolderBlobs
from tests.support.patience import patience
from tests.support.stack import Stack, is_stopped, kill_and_see, plain_curve, stack
from training.data.loading import UnitRows
from training.data.manifest import Manifest
from training.strategies.local.recipe import LocalRecipe

COORDINATOR, PEER, SPEAKER = "coordinator", "peer", "who it is about"
PROVIDERS = ("ann", "bob", "cem", "dan", "eve", "fay")
JOB: dict[str, Any] = {
    "model": {"num_layers": 3}, "stages": 3, "peers_per_stage": 2,
    "commit_timeout": "8s", "exchange_timeout": "8s", "budget": 50,
    "units_per_step": 8,  # long steps: a coordinator that dies often comes back later and later
}  # fmt: skip
FIRST_STEP = 3
STEPS_A_ROW = 6  # two to arm a failpoint, two until everybody is back, two while somebody is away
TRIES = 4  # a peer that had no such work in its step is tried in a later one


@dataclass(frozen=True)
class Row:
    """A kill: the process that tells `line`, and the victim, which may be the same."""

    teller: str
    line: str
    victim: str
    meaning: str

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.victim} dies: {self.meaning}"


ROWS = (
    # A peer before it sends each of its messages, and at what it is told.
    Row(PEER, "item_forward", PEER, "forward pass done, not answered"),
    Row(PEER, "item_done", PEER, "backward pass done, not answered"),
    Row(PEER, "claim_stored", PEER, "its claim stored, not sent"),
    Row(PEER, "shard_stored", PEER, "in the middle of the exchange"),
    Row(PEER, "bucket_stored", PEER, "a bucket stored, not sent"),
    Row(PEER, "seal_stored", PEER, "seal stored, not applied"),
    Row(PEER, "seal_applied", PEER, "seal applied, not answered"),
    # A peer after it has sent each of them.
    Row(COORDINATOR, "item_done", SPEAKER, "its item is noted"),
    Row(COORDINATOR, "claim_stored", SPEAKER, "its claim has arrived"),
    Row(COORDINATOR, "shard_stored", SPEAKER, "it has said which shards it holds"),
    Row(COORDINATOR, "round_closed", PEER, "all shards are where they are wanted"),
    Row(COORDINATOR, "bucket_stored", SPEAKER, "its bucket has arrived"),
    Row(COORDINATOR, "seal_applied", SPEAKER, "it has said that it applied the seal"),
    # The coordinator before each of its messages.
    Row(PEER, "item_done", COORDINATOR, "an item is done and not handed in"),
    Row(COORDINATOR, "item_done", COORDINATOR, "an item is noted"),
    Row(COORDINATOR, "claim_stored", COORDINATOR, "a claim stored, shards not asked for"),
    Row(COORDINATOR, "shard_stored", COORDINATOR, "some shards are held"),
    Row(COORDINATOR, "round_closed", COORDINATOR, "RoundClosed stored, not sent"),
    Row(COORDINATOR, "bucket_stored", COORDINATOR, "a bucket stored, the seal not made"),
    Row(COORDINATOR, "seal_stored", COORDINATOR, "seal stored, not sent"),
    # The coordinator after each of them.
    Row(PEER, "claim_stored", COORDINATOR, "a peer was asked to claim"),
    Row(PEER, "shard_stored", COORDINATOR, "a peer fetches shards"),
    Row(PEER, "bucket_stored", COORDINATOR, "a peer has RoundClosed"),
    Row(PEER, "seal_stored", COORDINATOR, "a peer has its seal"),
)
OTHERS, COORDINATORS = ROWS[:13], ROWS[13:]
LOCAL: dict[str, Any] = {
    "strategy": "local", "local": {"inner_steps": 4, "round_time": "4s", "quorum": 2},
    "peers_per_stage": len(PROVIDERS), "rows_per_unit": 2, "gradient_codec": "seeded4",
    "commit_timeout": "8s", "exchange_timeout": "8s", "budget": 200,
}  # fmt: skip
OVERLAP = LOCAL | {"local": LOCAL["local"] | {"inner_steps": 2, "segments": 2, "overlap": True}}
ROUNDS_A_ROW = 8  # some are over before a victim is back


class Killing:
    """Carries rows out, one after the other, in one job."""

    def __init__(self, running: Stack, job: JobId) -> None:
        self._stack, self._job = running, job
        self._log, self._folder = running.coordinator_log(job), running.job_folder(job)
        self._folder.mkdir(parents=True, exist_ok=True)  # before the host makes it
        self._turns = 0
        self.seconds: dict[bool, list[float]] = {False: [], True: []}

    async def carry_out(self, row: Row) -> None:
        """Kill, see that it landed, and wait until all is well again."""
        provider = self._next_provider(row)
        folder, log = self._teller(row, provider)
        said = await self._armed(row, folder, log)
        killed_at = await self._kill(row, said, provider)
        (folder / f"failpoints-{row.teller}").unlink()
        sealed = await self._line_after(killed_at, "seal_stored")
        self.seconds[row.victim == COORDINATOR].append((sealed["at"] - killed_at) / 1000)
        await self._everybody_back(killed_at, row, said, provider)

    def print_seconds(self) -> None:
        """From a SIGKILL to the next seal, by victim, and from a seal to the next one."""
        seals = [line["at"] / 1000 for line in self._stack.lines(self._log, "seal_stored")]
        between = [after - before for before, after in pairwise(seals)]
        figures = {"peer": self.seconds[False], COORDINATOR: self.seconds[True], "none": between}
        for victim, seconds in figures.items():
            if seconds:
                least, most = min(seconds), max(seconds)
                usual = statistics.median(seconds)
                print(f"{victim}: {len(seconds)} times {least:.2f}, {usual:.2f}, {most:.2f} s")

    def _next_provider(self, row: Row) -> str:
        """Another one each time; only the last stage, which has no y, tells of no forward pass."""
        for _ in PROVIDERS:
            provider = PROVIDERS[self._turns % len(PROVIDERS)]
            self._turns += 1
            log = self._stack.peer_log(provider, self._job)
            if row.line != "item_forward" or self._stack.lines(log, row.line):
                return provider
        raise AssertionError("no peer tells of a forward pass")

    def _teller(self, row: Row, provider: str) -> tuple[Path, Path]:
        """Folder and log of the process that tells the row's line."""
        if row.teller == PEER:
            folder = self._stack.lease_folder(provider, self._job)
            return folder, self._stack.peer_log(provider, self._job)
        return self._folder, self._log

    async def _armed(self, row: Row, folder: Path, log: Path) -> dict[str, Any]:
        """Put a failpoint into a step to come, until one has struck; the line where it did."""
        action = "kill" if row.victim == row.teller else "stop"
        for _ in range(TRIES):
            step = self._newest() + 2
            (folder / f"failpoints-{row.teller}").write_text(f"{action}:{row.line}:{step}")
            struck = asyncio.create_task(
                self._stack.wait_line(log, "failpoint", step=step, at_event=row.line, within=60)
            )
            over = asyncio.create_task(
                self._stack.wait_line(self._log, "seal_applied", step=step + 1, within=60)
            )
            done, waiting = await asyncio.wait({struck, over}, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
            if struck in done:
                struck.result()
                return next(
                    line
                    for line in reversed(self._stack.lines(log, row.line))
                    if line.get("step") == step
                )
        raise AssertionError(f"{row.name}: nobody tells {row.line} in any step")

    async def _kill(self, row: Row, said: dict[str, Any], provider: str) -> int:
        """Returns when the victim is gone; the moment, in Unix milliseconds."""
        if row.victim == row.teller:
            await _gone(said["pid"])
            return int(said["at"])
        stopped = identify(said["pid"])
        assert stopped is not None and is_stopped(stopped.pid), f"{row.name}: not stopped"
        victim = await self._victim(row, said, provider)
        killed_at = time.time_ns() // 10**6
        await kill_and_see(victim)
        assert is_stopped(stopped.pid), f"{row.name}: the window was over"
        send(stopped, signal.SIGCONT)
        return killed_at

    async def _victim(self, row: Row, said: dict[str, Any], provider: str) -> Identity:
        if row.victim in (PEER, SPEAKER):
            return await self._stack.peer_process(self._name_of(row, said, provider))
        [victim] = self._stack.find("tallystick.coordinator", mentions=self._job.hex())
        return victim

    def _name_of(self, row: Row, said: dict[str, Any], provider: str) -> str:
        """The provider whose peer is the victim."""
        if row.victim == PEER:
            return provider
        return next(
            name for name in PROVIDERS if self._stack.peer_of(name, self._job).hex() == said["peer"]
        )

    async def _everybody_back(
        self, killed_at: int, row: Row, said: dict[str, Any], provider: str
    ) -> None:
        """Wait until the victim takes part again, so that the next row finds a whole swarm."""
        if row.victim in (PEER, SPEAKER):
            peer = self._stack.peer_of(self._name_of(row, said, provider), self._job).hex()
            await self._line_after(killed_at, "seal_applied", peer=peer)
        else:
            for name in PROVIDERS:
                peer = self._stack.peer_of(name, self._job).hex()
                await self._line_after(killed_at, "seal_applied", peer=peer)

    async def _line_after(self, at: int, event: str, **fields: object) -> dict[str, Any]:
        async with asyncio.timeout(patience(60)):
            while True:
                for line in self._stack.lines(self._log, event):
                    if line["at"] > at and all(line.get(k) == v for k, v in fields.items()):
                        return line
                await asyncio.sleep(0.05)

    def _newest(self) -> int:
        return max(
            (line["step"] for line in self._stack.lines(self._log, "seal_stored")), default=0
        )


async def _gone(pid: int) -> None:
    async with asyncio.timeout(patience(10)):
        while identify(pid) is not None:
            await asyncio.sleep(0.005)


@pytest.mark.nightly
@pytest.mark.timeout(500)
@pytest.mark.parametrize("rows", [OTHERS, COORDINATORS], ids=["others", "coordinator"])
async def test_swarm__a_process_killed_in_each_row__the_same_curve_and_all_is_paid(
    rows: Sequence[Row], tmp_path: Path
) -> None:
    steps = FIRST_STEP + STEPS_A_ROW * len(rows)
    async with stack(tmp_path, forked=True) as running:
        submitted, view = await killed_in(running, rows, JOB | {"steps": steps})

        losses = [report.loss_millionths / 1e6 for report in view.reports]
        assert losses == pytest.approx(await plain_curve(submitted, tmp_path / "plain"), rel=1e-4)
        assert (await running.work(submitted.job)).lost == 0


@pytest.mark.nightly
@pytest.mark.timeout(500)
@pytest.mark.parametrize("rows", [OTHERS, COORDINATORS], ids=["others", "coordinator"])
@pytest.mark.parametrize("job", [LOCAL, OVERLAP], ids=["restart", "overlap"])
async def test_local__a_process_killed_in_each_row__weights_of_a_plain_loop_and_all_is_paid(
    job: dict[str, Any], rows: Sequence[Row], tmp_path: Path
) -> None:
    rows = [row for row in rows if row.line != "item_forward"]
    steps = FIRST_STEP + ROUNDS_A_ROW * len(rows)
    async with stack(tmp_path, forked=True) as running:
        submitted, _ = await killed_in(running, rows, job | {"steps": steps})

        merged, ahead = await merged_in(running, submitted.job)
        items = [item for claims in merged.values() for claim in claims for item in claim.numbers]
        assert sorted(items) == [*range(steps * submitted.spec.batch.units_per_step)]
        print(f"{sum(ahead.values())} of {len(items)} items were done ahead of their round")
        assert any(ahead.values()) == submitted.spec.batch.works_ahead
        root = await asyncio.to_thread(plain_root, submitted, merged, ahead, tmp_path / "plain")
        for name in PROVIDERS:
            applied = running.lines(running.peer_log(name, submitted.job), "seal_applied")
            assert applied[-1]["weights_root"] == root.hex(), name


async def killed_in(
    running: Stack, rows: Sequence[Row], job: dict[str, Any]
) -> tuple[Submitted, JobView]:
    """A job in which each row was carried out, at its end."""
    for name in PROVIDERS:
        running.start_provider(name)
    submitted = await running.submit(**job)
    killing = Killing(running, submitted.job)
    log = running.coordinator_log(submitted.job)
    await running.wait_line(log, "seal_stored", step=1, within=60)
    for row in rows:
        await killing.carry_out(row)
    view = await running.settled(submitted.job, within=240)
    killing.print_seconds()
    assert view.claimed == view.vested == view.earned > 0
    assert view.funded == view.committed + view.free
    return submitted, view


async def merged_in(
    running: Stack, job: JobId
) -> tuple[dict[int, list[WorkClaim]], dict[Digest, int]]:
    """The claims of each update, by its round, and how many items of each were done ahead of it.

    Prints those that the seal does not pay: a peer earns nothing in an update for which another one
    had to reduce a bucket of its.
    """
    network = await running.client.call(GET_NETWORK)
    history = JobHistory(Domain(network.chain_id, network.contracts.escrow))
    merged: dict[int, list[WorkClaim]] = {}
    ahead: dict[Digest, int] = {}
    async for _, item in running.client.messages(job):
        before, history = history, follow(history, item)
        if not (isinstance(item, Signed) and isinstance(item.message, Seal)):
            continue
        assert before.record is not None and history.newest is not None
        pending = [each.message for each in before.pending.values()]
        if (merge := merge_of(before.record.spec, pending)) is not None:
            merged[item.message.step] = list(merge.merged)
            for claim in merge.merged:
                leaves = before.leaves[claim.digest()]
                ahead[claim.digest()] = sum(leaf.base_round < claim.round for leaf in leaves)
            unpaid = [each for each in merge.merged if each.digest() not in history.newest.paid]
            print(f"round {item.message.step}: {len(unpaid)} claims unpaid") if unpaid else None
    return merged, ahead


def plain_root(
    submitted: Submitted,
    merged: dict[int, list[WorkClaim]],
    ahead: dict[Digest, int],
    folder: Path,
) -> Digest:
    """Of the weights that a loop in this process comes to."""
    torch.set_num_threads(1)
    write_blobs(submitted.corpus, folder)
    blobs, config = FolderBlobs(folder), LocalRecipe(submitted.spec).config
    manifest = Manifest.decoded(blobs.fetch(submitted.spec.data.manifest))
    rows = UnitRows(manifest, config.data, config.model.sequence_length, blobs)
    return Plain(submitted.spec, rows, merged, ahead=ahead).root()
