"""Which servers are run here, and with which programs and ports?

A server is embedded unless the user named one by URL (or started a subset without it). Programs
are looked for only for what is embedded, so a machine with outside servers needs none of them.
"""

import os
from collections.abc import Collection, Mapping

from pydantic import SecretStr

from contracts.terms.errors import WrongConfiguration
from tallystick.up.anvil import Anvil
from tallystick.up.data_folder import DataFolder
from tallystick.up.node import find_anvil
from tallystick.up.ports import LOOPBACK, checked_address
from tallystick.up.postgres import Postgres, find_binaries, find_runner
from tallystick.up.redis_server import RedisServer, find_binary
from tallystick.up.services import LISTENING, Addresses, Parts
from tallystick.up.settings import UpSettings


def embedded(settings: UpSettings, only: Collection[str]) -> frozenset[str]:
    """Names of the listening services that this machine runs itself.

    Raises:
        WrongConfiguration: an outside chain without a deployment to use on it.
    """
    names = set(LISTENING) & set(only) if only else set(LISTENING)
    if settings.database_url:
        names.discard("postgres")
    if settings.redis_url:
        names.discard("redis")
    if settings.rpc_url:
        names -= {"anvil", "gateway"}
        if settings.contracts is None and not only:
            raise WrongConfiguration(
                "TALLYSTICK_RPC_URL names a chain, but TALLYSTICK_CONTRACTS names no deployment "
                "on it: run `tallystick deploy` once and set it to the file that this writes"
            )
    return frozenset(names)


def assemble(
    settings: UpSettings,
    folder: DataFolder,
    *,
    names: Collection[str],
    ports: Mapping[str, int],
    environment: Mapping[str, str],
) -> Parts:
    """The embedded servers and everybody's addresses.

    Args:
        names: What `embedded` said.
        ports: A port for each of them.
        environment: What every child is given.

    Raises:
        WrongConfiguration: a program is missing, Postgres cannot be run by this user, or this
            machine does not have the address that others are to be told.
    """
    listen = checked_address(settings.listen_address) if settings.listen_address else ""
    postgres = redis = anvil = None
    if "postgres" in names:
        binaries = find_binaries()
        runner = find_runner(binaries, folder, uid=os.getuid())
        postgres = Postgres(folder, binaries, runner, ports["postgres"], environment)
    if "redis" in names:
        redis = RedisServer(folder, find_binary(), ports["redis"])
    if "anvil" in names:
        anvil = Anvil(folder, find_anvil(settings.anvil), ports["anvil"])
    deployment = anvil.deployment if anvil else settings.contracts
    addresses = Addresses(
        api=_local(ports, "api"),
        database=_outside(settings.database_url) or (postgres.url if postgres else ""),
        redis=_outside(settings.redis_url) or (redis.url if redis else ""),
        rpc=_outside(settings.rpc_url) or _local(ports, "gateway", listen),
        contracts=str(deployment or folder.chain / "deployment.json"),
        listen=listen,
    )
    return Parts(folder, ports, addresses, postgres, redis, anvil, settings)


def _outside(url: SecretStr | None) -> str:
    return url.get_secret_value() if url else ""


def _local(ports: Mapping[str, int], name: str, listen: str = "") -> str:
    return f"http://{listen or LOOPBACK}:{ports[name]}" if name in ports else ""
