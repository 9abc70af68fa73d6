"""API, worker and beat as processes: what a newcomer asks for happens on chain."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx

from contracts.terms.ids import Address
from market.bodies import AccountView, FaucetRequest, FaucetView, NetworkView, read_body
from tests.integration.market.client import once
from tests.support.anvil import deployed_chain
from tests.support.history import make_wallet
from tests.support.market_services import free_port
from tests.support.patience import patience

ACCOUNT: Address = make_wallet("newcomer").account


@contextlib.contextmanager
def running(log: Path, environment: Mapping[str, str], *arguments: str) -> Iterator[None]:
    """A Python process of ours, ended at the end."""
    with open(log, "ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **environment},
        )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def answered(client: httpx.AsyncClient, path: str) -> httpx.Response:
    async with asyncio.timeout(patience(40)):
        while True:
            with contextlib.suppress(httpx.TransportError):  # it does not listen yet
                response = await client.get(path)
                if response.status_code == 200:
                    return response
            await asyncio.sleep(0.1)


async def test_processes__newcomer_asks_the_faucet__gets_gas_and_tokens(
    tmp_path: Path, database: str, redis_url: str
) -> None:
    async with deployed_chain(tmp_path) as deployed:
        port = free_port()
        environment = {
            "TALLYSTICK_HOME": str(tmp_path),
            "TALLYSTICK_DATABASE_URL": database,
            "TALLYSTICK_REDIS_URL": redis_url,
            "TALLYSTICK_RPC_URL": deployed.anvil.url,
            "TALLYSTICK_MINE_URL": deployed.anvil.url,
            "TALLYSTICK_CONTRACTS": str(tmp_path / "deployment.json"),
            "TALLYSTICK_BLOBS": str(tmp_path / "blobs"),
            "TALLYSTICK_KEYS": str(tmp_path / "keys"),
            "TALLYSTICK_API_PORT": str(port),
        }
        celery = ("celery", "-A", "market.worker.app")
        schedule = str(tmp_path / "beat.db")
        with (
            running(tmp_path / "api.log", environment, "market.api"),
            running(
                tmp_path / "worker.log",
                environment,
                *(*celery, "worker", "-Q", "default,chain", "-c", "1", "-l", "INFO"),
            ),
            running(tmp_path / "beat.log", environment, *celery, "beat", "-s", schedule),
        ):
            base = f"http://127.0.0.1:{port}/v1"
            async with httpx.AsyncClient(
                base_url=base, timeout=patience(40), trust_env=False
            ) as client:
                network = read_body(NetworkView, (await answered(client, "/network")).content)
                asked = FaucetRequest(account=ACCOUNT).json_bytes()
                response = await client.post("/faucet", content=asked, headers=once())
                given = read_body(FaucetView, response.content)
                answer = await client.get(f"/accounts/{ACCOUNT.hex()}")
                account = read_body(AccountView, answer.content)

        assert network.contracts.settlement == deployed.deployment.settlement
        assert (account.gas, account.token) == (given.gas, given.tokens)
        assert len(given.transactions) == 2
        log = (tmp_path / "worker.log").read_text()
        assert "Traceback" not in log, log[-3000:]
