"""One peer: `python -m tallystick.provider.peer LEASEDIR`. Joins a job, computes, ends with it.

The agent made the folder: session key and signed LeaseAccept are in it. The peer knows neither
wallet nor chain. It checks the signed job against its id before it computes anything. Its stage is
what the coordinator says when it joins. The first SIGTERM lets it leave in order: it takes no more
units, sees what it has done through to the seal, and exits with 0.
"""

import asyncio
import contextlib
import sys
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from contracts.keys.store import load_or_create_session
from contracts.keys.wallet import Session
from contracts.settings import ProcessSettings, settings_of
from contracts.terms.auditors import AuditorList
from contracts.terms.errors import Conflict, NotFound, Unavailable
from contracts.terms.ids import JobId
from contracts.terms.messages import JobOpening, JobSpec, LeaseAccept
from contracts.terms.signatures import decode_signed, expect, verify_wallet
from contracts.terms.typed_data import Domain
from market.bodies.jobs import JobView
from market.bodies.routes import GET_AUDITORS, GET_JOB, GET_NETWORK
from tallystick.provider.beacons import BeaconFile
from tallystick.provider.blobs import MarketArtifacts, MarketBlobs, Midway
from tallystick.provider.folder import (
    check_promise,
    end_upload,
    load_peer_file,
    load_signed,
    note_upload,
)
from tallystick.provider.machine import MAX_NICE, NICE, stand_back
from tallystick.sdk.client import MarketClient, retrying
from tallystick.sdk.orders import signed_spec
from tallystick.sdk.process import (
    Located,
    run_process,
    teller,
    telling_traffic,
)
from tallystick.sdk.watch import DONE_STATES
from training.hooks import hooks
from training.stages.exact import device_class, set_threads
from training.tasks import end
from training.telling import Tell, telling_about
from training.transport.calls import METHODS
from training.transport.grpc_adapter import GrpcTransport
from training.worker.arithmetic import arithmetic_of
from training.worker.checking import Checking
from training.worker.run import Connection, Membership, StateFile, run_worker
from verification.auditing.auditor import compared
from verification.auditing.program import Auditing
from verification.docket import begin_job

LEAVE_WITHIN = 120.0  # seconds that it has to leave in order
_POLL = timedelta(seconds=1)  # all peers of a job ask for its whole view, until it is opened


class PeerSettings(ProcessSettings):
    """`TALLYSTICK_PEER_*` variables."""

    model_config = SettingsConfigDict(env_prefix="TALLYSTICK_PEER_")

    listen: str = "127.0.0.1:0"
    device: str = "cpu"
    nice: Annotated[int, Field(ge=0, le=MAX_NICE)] = NICE
    """How far it stands back for others; see `tallystick.provider.machine`."""


async def run_peer(folder: Path, leave: asyncio.Event, tell: Tell) -> None:
    """Work for the lease in `folder` until its job is over, or it has left."""
    settings = settings_of(PeerSettings)
    stand_back(settings.nice)
    peer = load_peer_file(folder)
    lease = load_signed(folder, LeaseAccept)
    if lease is None:
        raise NotFound(f"{folder} holds no lease: its agent makes it")
    job = JobId(lease.message.job)
    check_promise(folder, device_class(torch.device(settings.device)))
    session = load_or_create_session(folder / "session.key")
    set_threads(peer.threads)
    async with MarketClient(peer.market) as client:
        network = await retrying(lambda: client.call(GET_NETWORK))
        domain = Domain(network.chain_id, network.contracts.escrow)
        view = await _opened(client, job, leave)
        if view is None:
            return  # nobody knows it yet: gone before the job began
        assert view.opening is not None
        opening = expect(decode_signed(view.opening), JobOpening)
        spec = signed_spec(view.signed, job)
        verify_wallet(spec, spec.message.poster, domain)
        membership = Membership(spec, opening, lease, domain)
        transport = GrpcTransport(session.private_key, METHODS)
        tell = telling_about(telling_traffic(tell, transport.traffic), job=job, peer=session.peer)
        connection = Connection(
            session, transport, Located(client, job), settings.listen, peer.bandwidth
        )
        try:
            await _work(folder, settings, membership, connection, client, leave, tell)
        except Conflict as error:
            shown = await retrying(lambda: client.call(GET_JOB, job=job))
            if shown.state not in DONE_STATES and "suspended" not in error.data:
                raise
            tell("too_late", reason=error.message)  # starting again would change nothing
        finally:
            await transport.close()


async def _work(
    folder: Path,
    settings: PeerSettings,
    membership: Membership,
    connection: Connection,
    client: MarketClient,
    leave: asyncio.Event,
    tell: Tell,
) -> None:
    spec, opening = membership.spec.message, membership.opening.message
    job, session = JobId(opening.job), connection.session
    midway = Midway(folder, MarketArtifacts(client, job, session, tell), tell)
    with contextlib.closing(MarketBlobs(client.url, folder.parent.parent / "blobs")) as blobs:
        publishing = asyncio.create_task(midway.run())
        try:
            finished = await run_worker(
                folder,
                membership,
                connection,
                arithmetic_of(spec, blobs, settings.device),
                tell,
                leave=leave,
                behaviour=hooks().behaviour(spec.rules),
                checking=await _checking(client, spec, opening, folder),
                published=midway.take,
            )
        finally:
            await end([publishing])
        if finished is not None:
            await _publish(folder, finished, client, job, session, tell)


async def _publish(
    folder: Path,
    finished: StateFile,
    client: MarketClient,
    job: JobId,
    session: Session,
    tell: Tell,
) -> None:
    """The agent gives us time while parts reach the market."""
    stored = partial(note_upload, folder)
    artifacts = MarketArtifacts(client, job, session, tell, stored=stored)
    stored()
    try:
        await artifacts.publish(
            finished.stage, finished.step, finished.checkpoint, turn=finished.turn
        )
    finally:
        end_upload(folder)


async def _checking(
    client: MarketClient, spec: JobSpec, opening: JobOpening, folder: Path
) -> Checking | None:
    """What a checked job needs; the list is compared with the opening where it is read."""
    if spec.rules.audit is None:
        return None
    listed = await retrying(lambda: client.call(GET_AUDITORS, job=opening.job))
    auditors = AuditorList.decoded(listed.encoded)
    return Checking(auditors, begin_job, BeaconFile(folder), Auditing(compared))


async def _opened(client: MarketClient, job: JobId, leave: asyncio.Event) -> JobView | None:
    """The job once its coordinator has opened it and can be dialled; None if we leave before."""
    while not leave.is_set():
        with contextlib.suppress(Unavailable):
            view = await client.call(GET_JOB, job=job)
            if view.opening and view.coordinator_address:
                return view
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(leave.wait(), _POLL.total_seconds())
    return None


def main(arguments: list[str]) -> int:
    """Entry point."""
    if len(arguments) != 1:
        print("usage: python -m tallystick.provider.peer LEASEDIR", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    tell, leave = teller("peer", folder), asyncio.Event()
    work = run_peer(folder, leave, tell)
    return run_process(work, tell, leave=leave, leave_within=LEAVE_WITHIN)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
