"""Celery workers and beat over a test's market, as processes that a test may kill."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

CELERY = (sys.executable, "-m", "celery", "-A", "market.worker.app")
WORKER = ("worker", "--pool", "solo", "-l", "INFO")


@contextmanager
def workers(
    folder: Path, queues: Mapping[str, str], *, database: str, redis: str, rpc: str
) -> Iterator[dict[str, "subprocess.Popen[bytes]"]]:
    """Workers of these queues by name, and beat; each writes into its own log.

    Args:
        folder: Of the test's market: its keys, contracts and logs.
        queues: Of each worker, by its name; several with commas between them.
        database: Address of Postgres.
        redis: Address of the queue.
        rpc: Address of the node.
    """
    told = {
        "DATABASE_URL": database,
        "REDIS_URL": redis,
        "RPC_URL": rpc,
        "CONTRACTS": str(folder / "deployment.json"),
        "BLOBS": str(folder / "blobs"),
        "KEYS": str(folder / "keys"),
        "HOME": str(folder),
    }
    environment = dict(os.environ) | {f"TALLYSTICK_{name}": each for name, each in told.items()}
    commands: dict[str, tuple[str, ...]] = {
        name: (*WORKER, "-Q", queue, "-n", f"{name}@test") for name, queue in queues.items()
    }
    commands["beat"] = ("beat", "-l", "INFO", "-s", str(folder / "beat.db"))
    found = {}
    try:
        for name, command in commands.items():
            with open(folder / f"{name}.log", "wb") as output:
                found[name] = subprocess.Popen(
                    [*CELERY, *command], env=environment, stdout=output, stderr=output
                )
        yield found
    finally:
        for process in found.values():
            process.kill()
            process.wait()


def are_ready(folder: Path, *names: str) -> bool:
    """Whether workers take tasks."""
    return all(" ready." in (folder / f"{name}.log").read_text() for name in names)


def num_done(folder: Path, name: str, task: str) -> int:
    """How many tasks of a kind a worker says that it was given."""
    return (folder / f"{name}.log").read_text().count(f"Task {task}[")
