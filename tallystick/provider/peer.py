"""One peer: `python -m tallystick.provider.peer LEASEDIR`. Joins a job, computes, ends with it.

The agent made the folder: session key and signed LeaseAccept are in it. The peer knows neither
wallet nor chain. It checks the signed job against its id before it computes anything.
"""

import asyncio
import sys
from datetime import timedelta
from pathlib import Path

from pydantic_settings import BaseSettings, SettingsConfigDict

from contracts.keys.store import load_or_create_session
from contracts.keys.wallet import Session
from contracts.terms.errors import BadSignature, NotFound, Unavailable
from contracts.terms.ids import JobId, StageIndex
from contracts.terms.messages import JobOpening, JobSpec, LeaseAccept
from contracts.terms.signatures import Signed, decode_signed, expect, verify_wallet
from contracts.terms.typed_data import Domain
from market.api import schemas
from tallystick.provider.blobs import MarketBlobs
from tallystick.provider.folder import PeerFile, load_accept, load_peer_file
from tallystick.sdk.client import MarketClient, retrying
from tallystick.sdk.located import Located
from tallystick.sdk.process import run_process, teller
from training.stages.threads import set_threads
from training.telling import Tell
from training.transport.calls import METHODS
from training.transport.grpc_adapter import GrpcTransport
from training.worker.run import run_worker
from training.worker.stage_compute import StageCompute

_POLL = timedelta(milliseconds=200)


class PeerSettings(BaseSettings):
    """`TALLYSTICK_PEER_*` variables."""

    model_config = SettingsConfigDict(env_prefix="TALLYSTICK_PEER_", frozen=True, extra="ignore")

    listen: str = "127.0.0.1:0"
    device: str = "cpu"


async def run_peer(folder: Path, settings: PeerSettings, tell: Tell) -> None:
    """Work for the lease in `folder` until its job is over."""
    peer = load_peer_file(folder)
    accept = load_accept(folder)
    if accept is None:
        raise NotFound(f"{folder} holds no lease: its agent makes it")
    lease = expect(accept, LeaseAccept)
    session = load_or_create_session(folder / "session.key")
    set_threads(peer.threads)
    async with MarketClient(peer.market) as client:
        network = await retrying(client.network)
        domain = Domain(network.chain_id, network.contracts.settlement)
        view = await _opened(client, lease.message.job)
        spec = _checked_spec(view, lease.message.job, domain)
        await _work(peer, settings, spec, view, lease, session, domain, client, folder, tell)


async def _work(
    peer: PeerFile,
    settings: PeerSettings,
    spec: Signed[JobSpec],
    view: schemas.JobView,
    lease: Signed[LeaseAccept],
    session: Session,
    domain: Domain,
    client: MarketClient,
    folder: Path,
    tell: Tell,
) -> None:
    assert view.opening is not None
    opening = expect(decode_signed(view.opening), JobOpening)
    blobs = MarketBlobs(peer.market, folder.parent.parent / "blobs")
    transport = GrpcTransport(session.private_key, METHODS)
    try:
        compute = StageCompute(
            spec.message, blobs, stage=StageIndex(peer.stage), device=settings.device
        )
        await run_worker(
            folder,
            spec,
            opening,
            lease,
            domain=domain,
            session=session,
            transport=transport,
            listen=settings.listen,
            locate=Located(client, lease.message.job),
            compute=compute,
            tell=tell,
        )
    finally:
        await transport.close()
        blobs.close()


async def _opened(client: MarketClient, job: JobId) -> schemas.JobView:
    """The job once its coordinator has opened it and can be dialled."""
    while True:
        try:
            view = await client.job(job)
            if view.opening and view.coordinator_address:
                return view
        except Unavailable:
            pass
        await asyncio.sleep(_POLL.total_seconds())


def _checked_spec(view: schemas.JobView, job: JobId, domain: Domain) -> Signed[JobSpec]:
    spec = expect(decode_signed(view.signed), JobSpec)
    if spec.message.job() != job:
        raise BadSignature(f"the market answered with another job than {job.hex()}")
    verify_wallet(spec, spec.message.poster, domain)
    return spec


def main(arguments: list[str]) -> int:
    """Entry point."""
    if len(arguments) != 1:
        print("usage: python -m tallystick.provider.peer LEASEDIR", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    settings = PeerSettings()
    tell = teller("peer", folder)
    return run_process(run_peer(folder, settings, tell), tell)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
