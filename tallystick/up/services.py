"""Which services make a market on one machine, and what is each told?

The one table to change when a service is added. Listed after what they need; addresses and
passwords travel in the environment, as TALLYSTICK_* variables, never in argv. A server that the
user named by URL has no row of its own; a step checks that it answers.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from contracts.http_clients import async_client
from contracts.json_rpc import JsonRpc, first_block_hash
from contracts.terms.errors import ServiceUnreachable, WrongConfiguration
from contracts.terms.ids import Address
from tallystick.up import json_rpc, postgres, redis_server
from tallystick.up.anvil import Anvil
from tallystick.up.data_folder import DataFolder
from tallystick.up.ports import LOOPBACK
from tallystick.up.postgres import Postgres
from tallystick.up.redis_server import RedisServer
from tallystick.up.settings import UpSettings
from tallystick.up.spec import Action, Item, Probe, ServiceSpec, Step

LISTENING = ("postgres", "redis", "anvil", "gateway", "api")
"""Services that have a port."""

HOST_VARIABLES = ("TALLYSTICK_API_URL", "TALLYSTICK_KEYS", "TALLYSTICK_JOBS")
"""All of them that a host is told: it works through the API alone."""

ROLES = (
    "deployer",
    "admin",
    "anchorer",
    "relayer",
    "slasher",
    "canceller",
    "faucet",
)
"""Accounts of the market on the embedded chain; `keys/<role>.json` each."""

_CELERY = (sys.executable, "-m", "celery", "-A", "market.worker.app")


@dataclass(frozen=True)
class Addresses:
    """Where things are reached. Those that hold passwords are not shown."""

    api: str
    database: str = field(repr=False)
    redis: str = field(repr=False)
    rpc: str
    contracts: str
    """Path of the deployment file."""
    listen: str = ""
    """Address of this machine that others are told; empty: all is on loopback."""

    @property
    def shown_api(self) -> str:
        """The API as others reach it, or as this machine alone does."""
        return self.api.replace(LOOPBACK, self.listen) if self.listen else self.api


@dataclass(frozen=True)
class Parts:
    """What the table is made from: the embedded servers (None: an outside one is used)."""

    folder: DataFolder
    ports: Mapping[str, int]
    addresses: Addresses
    postgres: Postgres | None
    redis: RedisServer | None
    anvil: Anvil | None
    settings: UpSettings


def environment_of(parts: Parts) -> dict[str, str]:
    """The TALLYSTICK_* variables that every market process is given."""
    folder, where = parts.folder, parts.addresses
    variables = {
        "TALLYSTICK_HOME": str(folder.home),
        "TALLYSTICK_DATABASE_URL": where.database,
        "TALLYSTICK_REDIS_URL": where.redis,
        "TALLYSTICK_RPC_URL": where.rpc,
        "TALLYSTICK_CONTRACTS": where.contracts,
        "TALLYSTICK_BLOBS": parts.settings.blobs or str(folder.blobs),
        "TALLYSTICK_KEYS": str(folder.keys),
        "TALLYSTICK_JOBS": str(folder.jobs),
        "TALLYSTICK_API_URL": where.api,
        "TALLYSTICK_API_PORT": str(parts.ports.get("api", 0)),
        "TALLYSTICK_LISTEN_ADDRESS": where.listen,
    }
    if parts.anvil:
        # Only the market's own processes may make empty blocks, and they find out how here.
        variables["TALLYSTICK_MINE_URL"] = parts.anvil.url
    return variables


def table(parts: Parts) -> tuple[Item, ...]:
    """All services and steps, each after what it needs."""
    market = environment_of(parts)
    return (*_servers(parts), *_preparations(parts, market), *_market(parts, market))


def _servers(parts: Parts) -> list[Item]:
    where = parts.addresses
    items: list[Item] = [
        parts.postgres.spec()
        if parts.postgres
        else _outside("postgres", "TALLYSTICK_DATABASE_URL", where.database, postgres.answers),
        parts.redis.spec()
        if parts.redis
        else _outside("redis", "TALLYSTICK_REDIS_URL", where.redis, redis_server.answers),
    ]
    if parts.anvil is None:
        chain = _outside("gateway", "TALLYSTICK_RPC_URL", where.rpc, json_rpc.answers)
        return [*items, chain]
    return [*items, parts.anvil.spec(), _gateway(parts.anvil.url, where, parts.ports)]


def _outside(name: str, variable: str, url: str, answers: Callable[[str], Awaitable[bool]]) -> Step:
    async def check() -> None:
        if not await answers(url):
            raise ServiceUnreachable(f"{name} does not answer at the address in {variable}")

    return Step(name=name, action=check)


def _same_chain(where: Addresses) -> Action:
    """Refuses a database that is of another chain: nothing in it would be true of this one."""

    async def check() -> None:
        noted = await postgres.first_row(
            where.database, "SELECT hash FROM chain_cursor WHERE block = 0"
        )
        async with JsonRpc(where.rpc) as node:
            first = await first_block_hash(node.request)
        if noted is not None and first != noted[0]:
            raise WrongConfiguration(
                f"the database is of another chain: its first block is 0x{noted[0].hex()[:12]}, "
                f"here it is 0x{first.hex()[:12]}; bring that chain back (its folder `chain`, or "
                "TALLYSTICK_RPC_URL), or choose another data folder with --home"
            )

    return check


def _gateway(upstream: str, where: Addresses, ports: Mapping[str, int]) -> ServiceSpec:
    return ServiceSpec(
        name="gateway",
        argv=_python("tallystick.up.gateway"),
        environment={
            "TALLYSTICK_GATEWAY_PORT": str(ports["gateway"]),
            "TALLYSTICK_GATEWAY_LISTEN": where.listen,
            "TALLYSTICK_GATEWAY_UPSTREAM": upstream,
        },
        port=ports["gateway"],
        depends_on=("anvil",),
        ready=lambda: json_rpc.answers(where.rpc),
    )


def _preparations(parts: Parts, market: Mapping[str, str]) -> list[Item]:
    """What is done once before the market starts: tables, accounts with gas, contracts."""
    items: list[Item] = [
        Step(
            name="migrate",
            argv=_python("market.migrate"),
            environment=market,
            depends_on=("postgres",),
        ),
        Step(
            name="same-chain",
            action=_same_chain(parts.addresses),
            depends_on=("migrate", "gateway"),
        ),
    ]
    if parts.anvil:
        anvil = parts.anvil
        items += [
            Step(
                name="gas",
                action=_fund(anvil, parts.folder.keys),
                needed=lambda: not anvil.saved.exists(),
                depends_on=("anvil",),
            ),
            Step(
                name="deploy",
                argv=_python("contracts.chain.deploy"),
                environment={
                    **market,
                    "TALLYSTICK_CHAIN_PARAMETERS": json.dumps(parts.settings.chain_parameters),
                    "TALLYSTICK_ESCROW_TIMES": json.dumps(parts.settings.escrow_times),
                },
                depends_on=("gateway", "gas"),
                needed=lambda: not anvil.deployment.exists(),
            ),
            # Killed in the second after the contracts were made, the chain would forget them.
            Step(
                name="save",
                action=anvil.save,
                needed=lambda: not anvil.saved.exists(),
                depends_on=("deploy",),
            ),
        ]
    return items


def _fund(anvil: Anvil, keys: Path) -> Action:
    """Gives gas to the market's accounts; their keystores are made on first use."""

    def accounts() -> list[Address]:
        from contracts.keys.store import load_or_create_wallet  # eth_account takes half a second

        return [load_or_create_wallet(keys / f"{role}.json").account for role in ROLES]

    async def fund() -> None:
        await anvil.give_gas(await asyncio.to_thread(accounts))

    return fund


def _told_to_host(parts: Parts, market: Mapping[str, str]) -> dict[str, str]:
    told = {name: market[name] for name in HOST_VARIABLES}
    if parts.addresses.listen:
        told["TALLYSTICK_LISTEN"] = f"{parts.addresses.listen}:0"
    return told


def _market(parts: Parts, market: Mapping[str, str]) -> list[Item]:
    chain = "deploy" if parts.anvil else "gateway"
    needs = ("migrate", "redis", chain)
    return [
        ServiceSpec(
            name="api",
            argv=_python("market.api"),
            environment=market,
            port=parts.ports.get("api"),
            depends_on=needs,
            ready=_http(parts.addresses.api + "/v1/network"),
        ),
        # One process a queue, so that clearing never waits behind the chain.
        _worker("worker", "default", market, needs),
        _worker("worker-chain", "chain", market, needs),
        ServiceSpec(
            name="beat",
            argv=(*_CELERY, "beat", "-l", "INFO", "-s", str(parts.folder.run / "beat.db")),
            environment=market,
            depends_on=needs,
            says="beat: Starting",
        ),
        ServiceSpec(
            name="host",
            argv=_python("tallystick.host"),
            environment=_told_to_host(parts, market),
            depends_on=("api",),
            says="ready\n",
            grace=30.0,  # it stops the jobs that it hosts first
        ),
    ]


def _worker(
    name: str, queue: str, market: Mapping[str, str], needs: tuple[str, ...]
) -> ServiceSpec:
    quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat")
    options = ("-n", f"{name}@tallystick", "-Q", queue, "--pool", "solo", "-l", "INFO", *quiet)
    return ServiceSpec(
        name=name,
        argv=(*_CELERY, "worker", *options),
        environment=market,
        depends_on=needs,
        says=" ready.",
        grace=20.0,  # it finishes its task first
    )


def _python(module: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", module, *arguments)


def _http(url: str) -> Probe:
    async def is_ready() -> bool:
        try:
            async with async_client(url, timeout=4.0) as client:
                return (await client.get(url)).status_code == 200
        except httpx.HTTPError:
            return False

    return is_ready
