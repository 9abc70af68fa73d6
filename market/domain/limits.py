"""May a caller ask once more, and may an account store one blob more? Pure.

Rates: a token bucket, kept as one moment. It holds `burst` tokens, is refilled with `per_second` a
second, and every request takes one. All that has to be remembered is when it will be full again
(the generic cell rate algorithm, ITU-T I.371), so storage keeps one integer a caller, and nothing
of a caller whose bucket is full. Moments are microseconds of one clock, whichever.

Blobs: two questions, as wallets are free to make: has the account room in its quota, and has the
disk room for somebody like it? An account is known once something of it is at stake here: stake, a
job that was paid for, or a lease that it worked under. Strangers stop first, so that a crowd of
them leaves the rest of the disk to those who work. Units: bytes.
"""

from dataclasses import dataclass

from contracts.terms.amounts import BaseUnits, format_tokens
from contracts.terms.errors import ServiceUnreachable, TooLarge

# ------------------------------------------------------------------------------------------- rates

SECOND = 1_000_000


@dataclass(frozen=True)
class Rate:
    """How often."""

    per_second: int
    burst: int

    @property
    def interval(self) -> int:
        """Microseconds until a token comes back."""
        return max(1, SECOND // self.per_second)


@dataclass(frozen=True)
class Allowance:
    """What became of a request, and what is left."""

    is_admitted: bool
    limit: int
    remaining: int
    full_in: int  # microseconds
    retry_in: int  # microseconds; 0 if it was admitted


def take(full_at: int, now: int, rate: Rate) -> tuple[int, Allowance]:
    """Take a token from the bucket that is full at `full_at`; when it is full afterwards.

    A request that is refused takes none.
    """
    after = max(full_at, now) + rate.interval
    room = now + rate.burst * rate.interval - after
    if room < 0:
        return full_at, Allowance(False, rate.burst, 0, full_at - now, -room)
    return after, Allowance(True, rate.burst, room // rate.interval, after - now, 0)


# ------------------------------------------------------------------------------------------- blobs

BLOCK = 4096
"""What a file system gives to a file; the smallest blob costs as much."""
ONE_TOKEN = BaseUnits(1_000_000)
BYTES_PER_PARAMETER = 8
"""Of a model: its weights have four, and what is beside them, or is named again, the rest."""


@dataclass(frozen=True)
class BlobBounds:
    """What accounts may store; of settings."""

    anybody: int = 2 * 2**30
    """Of one account, whoever it is."""
    known: int = 20 * 2**30
    """Of one known account, beside the models of its jobs."""
    known_from: BaseUnits = ONE_TOKEN
    """Stake, or budget of a job, that makes its account known."""
    reserve: int = 2 * 2**30
    """Of the disk, which strangers leave free."""


@dataclass(frozen=True)
class Standing:
    """What an account has at stake here."""

    is_known: bool = False
    parameters: int = 0
    """Of the models of all jobs that it paid for; of those that it worked in as often as their
    weights are published."""


STRANGER = Standing()
MAX_UPLOADS = 32
"""Of one account, under way at the same time."""


def charged(num_bytes: int) -> int:
    """What a blob takes of a quota and of the disk: whole blocks, at least one."""
    return max(1, -(-num_bytes // BLOCK)) * BLOCK


def quota_of(standing: Standing, bounds: BlobBounds) -> int:
    """How much an account may have here in all; grows with what it has at stake."""
    if not standing.is_known:
        return bounds.anybody
    return max(bounds.anybody, bounds.known) + BYTES_PER_PARAMETER * standing.parameters


def check_quota(used: int, wanted: int, standing: Standing, bounds: BlobBounds) -> None:
    """Refuse what is beyond an account's quota.

    Raises:
        TooLarge: it has not so much room; data: `used`, `size`, `limit`.
    """
    quota, enough = quota_of(standing, bounds), format_tokens(bounds.known_from)
    if used + wanted <= quota:
        return
    remedy = (
        "another job or lease adds room for its model, the market's operator may add more"
        if standing.is_known
        else f"stake, or a paid job, of {enough} tokens makes that {bounds.known}"
    )
    raise TooLarge(
        f"this account has {used} bytes of blobs here and may have {quota}, so these {wanted} are "
        f"too many: {remedy}",
        used=used,
        size=wanted,
        limit=quota,
    )


def check_uploads(num_under_way: int) -> None:
    """Refuse one more upload of an account that has so many under way.

    Raises:
        TooLarge: it has `MAX_UPLOADS`.
    """
    if num_under_way >= MAX_UPLOADS:
        raise TooLarge(
            f"this account has {num_under_way} uploads under way, no more than {MAX_UPLOADS} may "
            "be: let one end",
            size=num_under_way + 1,
            limit=MAX_UPLOADS,
        )


def check_disk(
    free: int | None, coming: int, wanted: int, standing: Standing, bounds: BlobBounds
) -> None:
    """Refuse what the disk has no room for.

    Args:
        free: What more could be stored on it; None: not known.
        coming: What uploads that have begun may still write.
        wanted: What is asked for.
        standing: Whose it is.
        bounds: What strangers leave free.

    Raises:
        ServiceUnreachable: it may have later.
    """
    kept = 0 if standing.is_known else bounds.reserve
    if free is None or free - coming - wanted >= kept:
        return
    if standing.is_known:
        raise ServiceUnreachable(f"blob store: the disk has no room for {wanted} bytes; try later")
    enough = format_tokens(bounds.known_from)
    raise ServiceUnreachable(
        f"blob store: the last {bounds.reserve} bytes of its disk are for accounts with stake, a "
        f"paid job or a lease: stake {enough} tokens, or try later"
    )
