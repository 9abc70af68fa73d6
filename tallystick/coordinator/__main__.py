"""One job's coordinator: `python -m tallystick.coordinator JOBDIR`. Ends with its job.

Joins the library of `training.coordinator` with the wallet, the gRPC transport, the market's API
and a node of the chain. Everything that it needs after a restart is in its folder, so that a market
that is away does not stop it. If the market refuses a post, it says why in `stands_still` and ends:
its host tells the market, and starts it again when the poster has asked something new of the job.
What is sealed stays payable.
"""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from contracts.chain.connection import ChainConnection
from contracts.chain.contracts import bind
from contracts.chain.sender import Sender
from contracts.chain.transactions import SqliteTransactions
from contracts.keys.store import load_or_create_session, load_wallet
from contracts.keys.wallet import Session, Wallet
from contracts.terms.errors import DeadlineExceeded, Misbehaved, NotFound, Refused, Unavailable
from contracts.terms.ids import ZERO_DIGEST, JobId
from contracts.terms.messages import JobSpec, LeaseAccept
from contracts.terms.signatures import Signed, decode_signed, expect
from contracts.terms.targets import TargetCounts
from market.bodies.jobs import PostReports
from market.bodies.jobs import StepReport as StepReportBody
from market.bodies.market import NetworkView
from market.bodies.money import PostOrder
from market.bodies.routes import GET_JOB, GET_NETWORK, POST_ORDER, POST_REPORTS
from market.bodies.signing import reports_digest
from tallystick.coordinator.limits import ChainLimits, Order
from tallystick.files import replace_file
from tallystick.host.folder import (
    WishFile,
    announce,
    listening,
    load_auditors,
    load_job,
    standstill,
)
from tallystick.sdk.client import MarketClient, retrying
from tallystick.sdk.on_chain import deployment_of, kept_network, transactions_in
from tallystick.sdk.orders import NETWORK_FILE
from tallystick.sdk.process import MarketBeacons, run_process, teller, telling_traffic
from training.coordinator.ports import StepReport
from training.coordinator.run import CoordinatedJob, Opening, Signer, World, run_coordinator
from training.stages.torch_free import chunk_elements
from training.strategies.registry import rules_of
from training.telling import Tell, telling_about
from training.transport.calls import METHODS
from training.transport.grpc_adapter import GrpcTransport
from verification.docket import begin_job

REFUSED = "the market refused its coordinator's messages: "
HAND_IN_SECONDS = 5.0
"""Longest that an order waits for the market's answer: limits are not looked up meanwhile."""


@dataclass(frozen=True)
class MarketFeed:
    """Satisfies `training.coordinator.ports.Feed`."""

    client: MarketClient
    job: JobId
    wallet: Wallet
    session: Session
    folder: Path

    async def post(self, items: Sequence[bytes]) -> None:
        """Post kept items, as the job's coordinator; safe to repeat."""
        with noting_refusals(self.folder):
            await self.client.post_messages(self.job, items, by=self.wallet)

    async def report(self, reports: Sequence[StepReport]) -> None:
        """Post step reports, signed by the coordinator's session key."""
        rows = tuple(StepReportBody(**asdict(report)) for report in reports)
        signature = self.session.private_key.sign(reports_digest(self.job, rows))
        body = PostReports(reports=rows, signature=signature)
        with noting_refusals(self.folder):
            await self.client.call(POST_REPORTS, body, job=self.job)


@dataclass(frozen=True)
class MarketRoster:
    """Satisfies `training.coordinator.ports.Roster`."""

    client: MarketClient
    job: JobId

    async def accepted(self) -> Sequence[Signed[LeaseAccept]]:
        """LeaseAccepts whose bond the market has seen."""
        leases = (await self.client.call(GET_JOB, job=self.job)).leases
        return [
            expect(decode_signed(lease.accept), LeaseAccept)
            for lease in leases
            if lease.state == "active" and lease.accept is not None
        ]


async def hand_in(client: MarketClient, job: JobId, order: Order) -> None:
    """Hand an order for the escrow to the market; safe to repeat."""
    try:
        async with asyncio.timeout(HAND_IN_SECONDS):
            await client.call(POST_ORDER, PostOrder(signed=order.encoded()), job=job)
    except TimeoutError as error:
        raise DeadlineExceeded("the market took no order in time") from error


async def targets_of(folder: Path, spec: JobSpec, client: MarketClient) -> TargetCounts | None:
    """The counts of targets that a job on chats names; kept in its folder once they are here."""
    if spec.data.targets == ZERO_DIGEST:
        return None
    file = folder / "targets.msgpack"
    if not file.exists():
        replace_file(file, await retrying(lambda: client.get_blob(spec.data.targets)))
    return TargetCounts.decoded(file.read_bytes())


@contextmanager
def noting_refusals(folder: Path) -> Iterator[None]:
    """Write down for the host what the market refuses."""
    try:
        yield
    except (Refused, Misbehaved) as error:
        WishFile(folder).stands_still(f"{REFUSED}{error.code}: {error.message}")
        raise


async def coordinate(folder: Path, tell: Tell) -> None:
    """Run the job in `folder` to its end, or until the market refuses what it posts."""
    WishFile(folder).stands_still("")
    try:
        await _coordinate(folder, tell)
        WishFile(folder).stands_still("")
    except (Refused, Misbehaved):
        if not (standstill(folder) or "").startswith(REFUSED):
            raise


async def _coordinate(folder: Path, tell: Tell) -> None:
    told, spec = load_job(folder)
    session = load_or_create_session(folder / "coordinator.key")
    wallet = load_wallet(Path(told.wallet))
    async with MarketClient(told.market) as client:
        network = await network_of(client, folder)
        with noting_refusals(folder):
            targets = await targets_of(folder, spec.message, client)
        opening = Opening(
            anchorer=network.anchorer,
            opening_block=network.block if told.opening_block is None else told.opening_block,
            auditors=load_auditors(folder),
            targets=targets,
        )
        deployment = deployment_of(network)
        signer = Signer(wallet, session, deployment.domain)
        job = JobId(bytes.fromhex(told.job))
        transport = GrpcTransport(session.private_key, METHODS)
        tell = telling_about(telling_traffic(tell, transport.traffic), job=job)
        chain = ChainConnection(network.rpc_url)
        store = SqliteTransactions(transactions_in(folder, network))
        limits = ChainLimits(
            bind(chain, deployment),
            spec.message,
            wallet,
            Sender(chain, wallet, store, network.chain_id),
            partial(hand_in, client, job),
            tell,
        )
        try:
            await run_coordinator(
                folder,
                CoordinatedJob(
                    spec,
                    opening,
                    signer,
                    rules_of(spec.message),
                    chunk_elements(spec.message),
                    begin_job,
                ),
                World(
                    transport=transport,
                    listen=listening(folder, told.listen),
                    announce=lambda address: announce(folder, address),
                    feed=MarketFeed(client, job, wallet, session, folder),
                    roster=MarketRoster(client, job),
                    wishes=WishFile(folder),
                    limits=limits,
                    beacons=MarketBeacons(client, job),
                ),
                tell,
            )
        finally:
            await transport.close()
            await chain.close()
            store.close()


async def network_of(client: MarketClient, folder: Path) -> NetworkView:
    """Contracts and node of the market, as it says now, or said when it was last asked here."""
    try:
        network = await client.call(GET_NETWORK)
    except Unavailable:
        try:
            return kept_network(folder)
        except NotFound:
            network = await retrying(lambda: client.call(GET_NETWORK))
    replace_file(folder / NETWORK_FILE, network.model_dump_json().encode())
    return network


def main(arguments: list[str]) -> int:
    """Entry point."""
    if len(arguments) != 1:
        print("usage: python -m tallystick.coordinator JOBDIR", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    tell = teller("coordinator", folder)
    return run_process(coordinate(folder, tell), tell)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
