"""One process of a small real job: `python -m tests.support.swarm_process ROLE FOLDER`.

What the entries of `tallystick` do with API and wallet files, this does with one folder: papers
are made again by every process (keys are deterministic), blobs lie in `blobs/`, the coordinator's
address in `address`, what the market would hear in `feed.hex`. Roles: coordinator, and the
workers by name. TALLYSTICK_LISTEN says where to listen, TALLYSTICK_FAILPOINT where to
die, TALLYSTICK_PEER_BEHAVIOUR which adversary a worker plays, TALLYSTICK_DEVICE what it computes
on. Beacons of a checked job are made up,
and there at once.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from contracts.keys.wallet import Session
from contracts.terms.auditors import AuditorList
from contracts.terms.ids import Digest
from contracts.terms.messages import LocalSpec
from tallystick.files import replace_file
from tallystick.gym.hooks import FailpointFile
from tallystick.gym.registry import behaviour_of
from tallystick.sdk.process import telling_traffic
from tests.support.checked_swarm import MadeUpBeacons
from tests.support.fakes.coordinator import MemoryLimits, MemoryRoster, MemoryWishes
from tests.support.history import DOMAIN
from tests.support.swarm_job import COORDINATOR, Papers
from training.coordinator.ports import StepReport
from training.recipes import micro
from training.telling import JsonLines, Tell
from training.transport.calls import METHODS
from training.transport.grpc_adapter import GrpcTransport
from training.worker.checking import Checking
from verification.docket import begin_job

LOOPBACK = "127.0.0.1:0"
NUM_STEPS = 5
ROWS = 8  # of a unit: 16 groups of validation rows


def process_papers(folder: Path) -> Papers:
    """Papers of the job in `folder`, of the micro recipe with larger units."""
    from tests.support.stage_swarm import stage_papers

    about = json.loads((folder / "job.json").read_text())
    changed = about.get("changed", {})
    if "local" in changed:
        changed |= {"local": LocalSpec(**changed["local"])}
    config = micro(num_steps=changed.get("steps", NUM_STEPS))
    return stage_papers(
        replace(config, data=replace(config.data, rows_per_unit=ROWS)),
        Digest(bytes.fromhex(about["manifest"])),
        *about["workers"],
        stages=about["stages"],
        **{"chunks": 2, "validate_every": 2} | changed,
    )


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


async def run(papers: Papers, role: str, folder: Path, tell: Tell) -> None:
    """Be `role` of the job of these papers until it is over."""
    session = papers.session if role == COORDINATOR else papers.members[role].session
    transport = GrpcTransport(session.private_key, METHODS)
    addresses, tell = AddressFile(folder), telling_traffic(tell, transport.traffic)
    try:
        if role == COORDINATOR:
            await _coordinator(folder, papers, transport, addresses, tell)
        else:
            await _worker(role, folder, papers, session, transport, addresses, tell)
    finally:
        await transport.close()


async def _coordinator(
    folder: Path, papers: Papers, transport: GrpcTransport, addresses: AddressFile, tell: Tell
) -> None:
    from training.coordinator.rebalancing import PERIOD
    from training.coordinator.run import CoordinatedJob, Signer, World, run_coordinator
    from training.stages.torch_free import chunk_elements
    from training.strategies.registry import rules_of

    spec = papers.spec.message
    await run_coordinator(
        folder / COORDINATOR,
        CoordinatedJob(
            papers.spec,
            papers.opening,
            Signer(papers.coordinator, papers.session, DOMAIN),
            rules_of(spec),
            chunk_elements(spec),
            begin_job,
            rebalance_every=int(os.environ.get("TALLYSTICK_REBALANCE_EVERY", PERIOD)),
        ),
        World(
            transport=transport,
            listen=os.environ.get("TALLYSTICK_LISTEN", LOOPBACK),
            announce=addresses.announce,
            feed=FileFeed(folder),
            roster=MemoryRoster(tuple(papers.leases.values())),
            wishes=MemoryWishes(),
            limits=MemoryLimits(),
            beacons=None if papers.opening.auditors is None else MadeUpBeacons(),
        ),
        tell,
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
    from tests.support.fakes.blobs import FolderBlobs
    from training.stages.exact import set_threads
    from training.worker.arithmetic import arithmetic_of
    from training.worker.run import Connection, Membership, run_worker

    set_threads(1)
    spec = papers.spec.message
    await run_worker(
        folder / role,
        Membership(papers.spec, papers.signed_opening(), papers.leases[role], DOMAIN),
        Connection(
            session,
            transport,
            addresses.locate,
            listen=os.environ.get("TALLYSTICK_LISTEN", LOOPBACK),
        ),
        arithmetic_of(
            spec, FolderBlobs(folder / "blobs"), os.environ.get("TALLYSTICK_DEVICE", "cpu")
        ),
        tell,
        behaviour=behaviour_of(os.environ.get("TALLYSTICK_PEER_BEHAVIOUR", ""), spec.rules),
        checking=_checking(papers.opening.auditors),
    )


def _checking(listed: AuditorList | None) -> Checking | None:
    """What a worker of a checked job needs: one has outside auditors, if only an empty list."""
    if listed is None:
        return None
    from verification.auditing.auditor import compared  # torch, as above
    from verification.auditing.program import Auditing

    return Checking(listed, begin_job, MadeUpBeacons(), Auditing(compared))


def main(papers_of: Callable[[Path], Papers] = process_papers) -> None:
    """Parse, run in the job that `papers_of` the folder are of, end quietly on SIGTERM."""
    role, folder = sys.argv[1], Path(sys.argv[2])
    (folder / "log").mkdir(exist_ok=True)
    with (folder / "log" / f"{role}.jsonl").open("a") as stream:
        marks = folder / os.environ.get("TALLYSTICK_FAILPOINT_MARKS", role)
        marks.mkdir(exist_ok=True)
        points = os.environ.get("TALLYSTICK_FAILPOINT", "")
        replace_file(marks / "failpoint", points.encode(), durable=False)
        tell = FailpointFile(JsonLines(stream, process=role), marks / "failpoint")
        with suppress(asyncio.CancelledError):
            asyncio.run(_until_terminated(run(papers_of(folder), role, folder, tell)))


async def _until_terminated(work: Coroutine[None, None, None]) -> None:
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await task


if __name__ == "__main__":
    main()
