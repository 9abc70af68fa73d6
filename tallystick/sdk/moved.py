"""What a poster's own transaction has moved, or would: bodies that need no chain to be read."""

from contracts.terms.ids import DigestField, JobIdField
from market.bodies.base import Body, Money


class ToppedUp(Body):
    """What the escrow holds for a job after a top-up, or would."""

    job: JobIdField
    amount: Money
    funded: Money  # brought less what was reclaimed
    free: Money  # of that not committed: the poster can take it back
    transaction: DigestField | None  # None: a rehearsal


class Reclaimed(Body):
    """What went into the poster's wallet, or would, and what the escrow still holds for the job."""

    job: JobIdField
    amount: Money
    from_job: Money  # of it; the rest was in the poster's balance already
    committed: Money  # limits of accounts, which are not free
    free: Money  # that was left
    transaction: DigestField | None  # None: a rehearsal, or nothing was free
