"""An outside auditor of one job: `python -m tallystick.provider.outside AUDITDIR`. Ends with it.

The agent made the folder `audits/<job>` of its home, writes the job's `beacons` there, and ends
this process when the market asks for the job's audits no more. It knows neither wallet nor chain:
what it says is signed by the agent's audit key. Whatever it reads of the job at the market is
checked as a member checks it.
"""

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from contracts.keys.store import load_or_create_session
from contracts.settings import ProcessSettings, settings_of
from contracts.terms.history import Kept
from contracts.terms.ids import JobId
from contracts.terms.typed_data import Domain
from market.bodies.routes import GET_NETWORK
from tallystick.provider.beacons import BeaconFile
from tallystick.provider.blobs import MarketBlobs
from tallystick.provider.folder import load_audit_file
from tallystick.provider.machine import MAX_NICE, NICE, check_class, stand_back
from tallystick.sdk.client import MarketClient, retrying
from tallystick.sdk.process import Located, run_process, teller
from training.stages.exact import device_class, set_threads
from training.telling import Tell, telling_about
from training.transport.calls import METHODS
from training.transport.grpc_adapter import GrpcTransport
from training.worker.arithmetic import arithmetic_of
from training.worker.run import Connection
from verification.auditing.auditor import compared
from verification.auditing.outside import FollowedJob, audit_outside
from verification.auditing.program import Auditing
from verification.docket import begin_job


class OutsideSettings(ProcessSettings):
    """`TALLYSTICK_AUDIT_*` variables."""

    model_config = SettingsConfigDict(env_prefix="TALLYSTICK_AUDIT_")

    device: str = "cpu"
    nice: Annotated[int, Field(ge=0, le=MAX_NICE)] = NICE
    """How far it stands back for others; see `tallystick.provider.machine`."""


async def audit_from_outside(folder: Path, tell: Tell) -> None:
    """Audit the job of `folder` until it is over; the agent shows what was found wrong."""
    settings = settings_of(OutsideSettings)
    stand_back(settings.nice)
    told = load_audit_file(folder)
    check_class(told.device_class, device_class(torch.device(settings.device)))
    job, home = JobId(bytes.fromhex(told.job)), folder.parent.parent
    session = load_or_create_session(home / "audit.key")
    set_threads(told.threads)
    async with MarketClient(told.market) as client:
        network = await retrying(lambda: client.call(GET_NETWORK))
        blobs = MarketBlobs(told.market, home / "blobs")
        transport = GrpcTransport(session.private_key, METHODS)
        tell = telling_about(tell, job=job, peer=session.peer)
        try:
            await audit_outside(
                folder,
                FollowedJob(
                    job,
                    Domain(network.chain_id, network.contracts.escrow),
                    begin_job,
                    History(client, job).after,
                    BeaconFile(folder),
                ),
                Connection(session, transport, Located(client, job)),
                lambda spec: arithmetic_of(spec, blobs, settings.device),
                Auditing(compared),
                tell,
            )
        finally:
            await transport.close()
            blobs.close()


class History:
    """A job's items at the market, by how many came before; their numbers there may have gaps."""

    def __init__(self, client: MarketClient, job: JobId) -> None:
        self._client, self._job = client, job
        self._numbers = [0]  # of the last of so many items

    async def after(self, count: int) -> AsyncIterator[Kept]:
        """The items after the first `count`, of which all were asked for before."""
        del self._numbers[count + 1 :]
        async for number, item in self._client.messages(self._job, after=self._numbers[count]):
            self._numbers.append(number)
            yield item


def main(arguments: list[str]) -> int:
    """Entry point."""
    if len(arguments) != 1:
        print("usage: python -m tallystick.provider.outside AUDITDIR", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    tell = teller("outside", folder)
    return run_process(audit_from_outside(folder, tell), tell)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
