"""One trainer of a job: `python -m tallystick.trainer JOBDIR NUMBER`. It has no state.

It finds the coordinator of its folder in the folder, and asks no market for anything.
"""

import sys
from pathlib import Path

from contracts.keys.store import load_or_create_session
from contracts.terms.errors import Malformed
from contracts.terms.ids import JobId
from tallystick.host.folder import announced, count_trainers, load_job, trainer_key
from tallystick.sdk.process import run_process, teller, telling_traffic
from training.telling import Tell, telling_about
from training.trainer.run import run_trainer
from training.transport.calls import METHODS
from training.transport.grpc_adapter import GrpcTransport


async def train(folder: Path, number: int, tell: Tell) -> None:
    """Route units of the job in `folder` until it is over, as trainer `number` of it.

    Raises:
        Malformed: the folder is none, or of a job with fewer trainers.
    """
    told, _ = load_job(folder)
    if not 0 <= number < count_trainers(folder):
        raise Malformed(f"{folder} is of a job with {count_trainers(folder)} trainers")
    session = load_or_create_session(trainer_key(folder, number))
    coordinator = load_or_create_session(folder / "coordinator.key").key
    job = JobId(bytes.fromhex(told.job))
    transport = GrpcTransport(session.private_key, METHODS)
    tell = telling_about(telling_traffic(tell, transport.traffic), job=job)

    async def locate() -> str | None:
        return announced(folder)

    try:
        await run_trainer(job, coordinator, transport=transport, locate=locate, tell=tell)
    finally:
        await transport.close()


def main(arguments: list[str]) -> int:
    """Entry point."""
    if len(arguments) != 2 or not arguments[1].isdecimal():
        print("usage: python -m tallystick.trainer JOBDIR NUMBER", file=sys.stderr)
        return 2
    folder, number = Path(arguments[0]), int(arguments[1])
    tell = teller("trainer", folder, number=number)
    return run_process(train(folder, number, tell), tell)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
