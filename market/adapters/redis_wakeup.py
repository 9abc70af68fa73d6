"""Wake-ups over Redis pub/sub: only "there is news", so a lost one costs a poll, nothing else."""

import logging
from collections.abc import AsyncIterator, Iterable
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.exceptions import RedisError

from contracts.terms.errors import ServiceUnreachable

CHANNEL = "tallystick:wake:"
LISTEN_SECONDS = 5.0  # of one look at the socket
log = logging.getLogger(__name__)


class RedisWakeup:
    """`Wakeup` over one Redis, 6.2 or newer."""

    def __init__(self, url: str) -> None:
        pool = BlockingConnectionPool.from_url(
            url, max_connections=10, timeout=5, socket_connect_timeout=2, socket_timeout=5
        )
        self._redis = Redis.from_pool(pool)

    async def close(self) -> None:
        """Close all connections."""
        await self._redis.aclose()

    async def wake(self, topics: Iterable[str]) -> None:
        """See `Wakeup.wake`."""
        try:
            for topic in topics:
                await self._redis.publish(CHANNEL + topic, b"")
        except (RedisError, OSError) as error:  # readers find the rows when they poll
            log.warning("nobody was woken: %r", error)

    async def listen(self) -> AsyncIterator[str]:
        """See `Wakeup.listen`."""
        try:
            async with self._redis.pubsub() as channel:
                await channel.psubscribe(CHANNEL + "*")
                while True:
                    found = await channel.get_message(timeout=LISTEN_SECONDS)
                    if found is not None:
                        yield _heard(found)
        except (RedisError, OSError) as error:
            raise ServiceUnreachable(f"Redis: {error!r}") from error


def _heard(message: dict[str, Any]) -> str:
    """The topic; none of a subscription, which the client repeats when it had to connect again."""
    if message["type"] != "pmessage":
        return ""
    return str(message["channel"].decode()).removeprefix(CHANNEL)
