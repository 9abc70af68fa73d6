"""One process of a small real job: `python -m tests.support.swarm_process ROLE FOLDER`.

What the entries of `tallystick` do with API and wallet files, this does with one folder: papers
are made again by every process (keys are deterministic), blobs lie in `blobs/`, the coordinator's
address in `address`, what the market would hear in `feed.hex`. Roles: coordinator, and the
trainers and workers by name. TALLYSTICK_FAILPOINT says where to die.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from contracts.keys.wallet import Session
from contracts.terms.ids import ZERO_DIGEST, Digest
from contracts.terms.messages import JobOpening
from contracts.terms.signatures import Signed
from tests.support.history import DOMAIN
from tests.support.swarm_job import COORDINATOR, Papers
from training.coordinator.ports import MemoryRoster, StepReport
from training.recipes import micro
from training.telling import Failing, JsonLines, Tell, parse_failpoints
from training.transport.calls import METHODS
from training.transport.grpc_adapter import GrpcTransport

LOOPBACK = "127.0.0.1:0"
NUM_STEPS = 5
ROWS = 8  # of a unit: 16 groups of validation rows


def process_papers(folder: Path) -> Papers:
    """Papers of the job in `folder`, of the micro recipe with larger units."""
    from tests.support.stage_swarm import stage_papers

    about = json.loads((folder / "job.json").read_text())
    config = micro(num_steps=NUM_STEPS)
    return stage_papers(
        replace(config, data=replace(config.data, rows_per_unit=ROWS)),
        Digest(bytes.fromhex(about["manifest"])),
        *about["workers"],
        stages=about["stages"],
        trainers=about["trainers"],
        chunks=2,
        validate_every=2,
    )


def signed_opening(papers: Papers) -> Signed[JobOpening]:
    """The coordinator's JobOpening, made again: signatures are deterministic."""
    message = JobOpening(
        job=papers.job,
        job_spec=papers.spec.message.digest(),
        session_key=papers.session.key,
        trainers=papers.opening.trainers,
        anchorer=papers.opening.anchorer,
        opening_block=papers.opening.opening_block,
        outside_auditors=ZERO_DIGEST,
    )
    return papers.coordinator.sign(message, DOMAIN)


class FileFeed:
    """A market that writes down what it hears, a line an item."""

    def __init__(self, folder: Path) -> None:
        self._items, self._reports = folder / "feed.hex", folder / "reports.jsonl"

    async def post(self, items: Sequence[bytes]) -> None:
        """See `Feed.post`."""
        with self._items.open("a") as file:
            file.writelines(item.hex() + "\n" for item in items)

    async def report(self, reports: Sequence[StepReport]) -> None:
        """See `Feed.report`."""
        with self._reports.open("a") as file:
            file.writelines(
                json.dumps([each.step, each.loss_millionths]) + "\n" for each in reports
            )


class AddressFile:
    """Where the coordinator listens, as the market would say."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "address"

    def announce(self, address: str) -> None:
        """Write it, whole or not at all."""
        aside = self._path.with_suffix(".tmp")
        aside.write_text(address)
        os.replace(aside, self._path)

    async def locate(self) -> str | None:
        """Read it."""
        return self._path.read_text() if self._path.exists() else None


async def run(role: str, folder: Path, tell: Tell) -> None:
    """Be `role` until the job is over."""
    papers = process_papers(folder)
    keys = {COORDINATOR: papers.session, **papers.trainers}
    session = keys.get(role) or papers.members[role].session
    transport = GrpcTransport(session.private_key, METHODS)
    addresses = AddressFile(folder)
    try:
        if role == COORDINATOR:
            await _coordinator(folder, papers, transport, addresses, tell)
        elif role in papers.trainers:
            from training.trainer.run import run_trainer

            await run_trainer(
                papers.job,
                papers.session.key,
                transport=transport,
                locate=addresses.locate,
                tell=tell,
            )
        else:
            await _worker(role, folder, papers, session, transport, addresses, tell)
    finally:
        await transport.close()


async def _coordinator(
    folder: Path, papers: Papers, transport: GrpcTransport, addresses: AddressFile, tell: Tell
) -> None:
    from training.coordinator.run import run_coordinator

    await run_coordinator(
        folder / COORDINATOR,
        papers.spec,
        papers.opening,
        domain=DOMAIN,
        wallet=papers.coordinator,
        session=papers.session,
        transport=transport,
        listen=LOOPBACK,
        feed=FileFeed(folder),
        roster=MemoryRoster(tuple(papers.leases.values())),
        announce=addresses.announce,
        tell=tell,
    )


async def _worker(
    role: str,
    folder: Path,
    papers: Papers,
    session: Session,
    transport: GrpcTransport,
    addresses: AddressFile,
    tell: Tell,
) -> None:
    from training.data.loading import FolderBlobs
    from training.stages.threads import set_threads
    from training.worker.run import run_worker
    from training.worker.stage_compute import StageCompute

    set_threads(1)
    await run_worker(
        folder / role,
        papers.spec,
        signed_opening(papers),
        papers.leases[role],
        domain=DOMAIN,
        session=session,
        transport=transport,
        listen=LOOPBACK,
        locate=addresses.locate,
        compute_for=lambda stage: StageCompute(
            papers.spec.message, FolderBlobs(folder / "blobs"), stage=stage
        ),
        tell=tell,
    )


def main() -> None:
    """Parse, run, end quietly on SIGTERM."""
    role, folder = sys.argv[1], Path(sys.argv[2])
    (folder / "log").mkdir(exist_ok=True)
    with (folder / "log" / f"{role}.jsonl").open("a") as stream:
        failpoints = parse_failpoints(os.environ.get("TALLYSTICK_FAILPOINT", ""))
        tell = Failing(JsonLines(stream, process=role), failpoints, folder / role)
        with suppress(asyncio.CancelledError):
            asyncio.run(_until_terminated(run(role, folder, tell)))


async def _until_terminated(work: Coroutine[None, None, None]) -> None:
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await task


if __name__ == "__main__":
    main()
