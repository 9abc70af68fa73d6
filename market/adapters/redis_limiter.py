"""Token buckets in Redis, one key a caller: all API processes count together.

Redis may be away or forget: then everybody is admitted. One second passes before it is asked again,
so that its absence costs no request more than the first.
"""

import logging
import time

from redis.asyncio import BlockingConnectionPool, Redis
from redis.exceptions import RedisError

from market.domain.limits import Allowance, Rate, take

PREFIX = "tallystick:rate:"
_AWAY_SECONDS = 1.0
log = logging.getLogger(__name__)

# `market.domain.limits.take`, in one step and by one clock; both numbers that it decided by come
# back. The whole script's effects are replicated, so it may ask for the time (Redis >= 5).
_TAKE = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local full_at = tonumber(redis.call('GET', KEYS[1]) or '0')
local after = math.max(full_at, now) + interval
if after <= now + burst * interval then
  local keep = math.ceil((after - now) / 1000)
  redis.call('SET', KEYS[1], string.format('%.0f', after), 'PX', keep)
end
return {full_at, now}
"""


class RedisLimiter:
    """`Limiter` over one Redis, 6.2 or newer."""

    def __init__(self, url: str) -> None:
        pool = BlockingConnectionPool.from_url(
            url, max_connections=10, timeout=0.5, socket_connect_timeout=0.5, socket_timeout=0.5
        )
        self._redis = Redis.from_pool(pool)
        self._take = self._redis.register_script(_TAKE)
        self._away_until = 0.0

    async def close(self) -> None:
        """Close all connections."""
        await self._redis.aclose()

    async def take(self, caller: str, rate: Rate) -> Allowance | None:
        """See `Limiter.take`."""
        if time.monotonic() < self._away_until:
            return None
        try:
            full_at, now = await self._take(
                keys=[PREFIX + caller], args=[rate.interval, rate.burst]
            )
        except (RedisError, OSError) as error:
            self._away_until = time.monotonic() + _AWAY_SECONDS
            log.warning("nobody is counted: %r", error)
            return None
        return take(int(full_at), int(now), rate)[1]
