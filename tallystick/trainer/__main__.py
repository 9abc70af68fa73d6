"""One trainer of a job: `python -m tallystick.trainer JOBDIR`. Ends with its job, no state."""

import sys
from pathlib import Path

from contracts.keys.store import load_or_create_session
from contracts.terms.ids import JobId
from tallystick.host.folder import load_job
from tallystick.sdk.client import MarketClient
from tallystick.sdk.located import Located
from tallystick.sdk.process import run_process, teller
from training.telling import Tell
from training.trainer.run import run_trainer
from training.transport.calls import METHODS
from training.transport.grpc_adapter import GrpcTransport


async def train(folder: Path, tell: Tell) -> None:
    """Route the units of the job in `folder` until it is over."""
    told, _ = load_job(folder)
    session = load_or_create_session(folder / "trainer.key")
    coordinator = load_or_create_session(folder / "coordinator.key").key
    job = JobId(bytes.fromhex(told.job))
    async with MarketClient(told.market) as client:
        transport = GrpcTransport(session.private_key, METHODS)
        try:
            await run_trainer(
                job,
                coordinator,
                transport=transport,
                locate=Located(client, job),
                tell=tell,
            )
        finally:
            await transport.close()


def main(arguments: list[str]) -> int:
    """Entry point."""
    if len(arguments) != 1:
        print("usage: python -m tallystick.trainer JOBDIR", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    tell = teller("trainer", folder)
    return run_process(train(folder, tell), tell)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
