"""What the coordinator needs of the world, in memory."""

from collections.abc import Sequence

from contracts.governance.escrow import Budget, Channel
from contracts.terms.amounts import UINT80_MAX
from contracts.terms.ids import Address
from contracts.terms.messages import LeaseAccept
from contracts.terms.signatures import Signed
from training.coordinator.ports import Progress, Standings, StepReport, Wish

ENOUGH = Channel(limit=UINT80_MAX, stake=UINT80_MAX)


class MemoryFeed:
    """Keeps what it is given, each item once."""

    def __init__(self) -> None:
        self.items: list[bytes] = []
        self.reports: list[StepReport] = []

    async def post(self, items: Sequence[bytes]) -> None:
        """See `Feed.post`."""
        self.items += [item for item in items if item not in self.items]

    async def report(self, reports: Sequence[StepReport]) -> None:
        """See `Feed.report`."""
        self.reports += reports


class MemoryWishes:
    """A wish that a test changes, and the number that was heeded last."""

    def __init__(self) -> None:
        self.wish: Wish | None = None
        self.number = 0
        self.why = [""]

    def newest(self) -> Wish | None:
        """See `Wishes.newest`."""
        return self.wish

    def heeded(self, number: int) -> None:
        """See `Wishes.heeded`."""
        self.number = number

    def stands_still(self, why: str) -> None:
        """See `Wishes.stands_still`."""
        self.why.append(why)


class MemoryRoster:
    """A list that a test changes."""

    def __init__(self, leases: Sequence[Signed[LeaseAccept]] = ()) -> None:
        self.leases = list(leases)

    async def accepted(self) -> Sequence[Signed[LeaseAccept]]:
        """See `Roster.accepted`."""
        return tuple(self.leases)


class MemoryLimits:
    """Everybody has enough, unless a test says otherwise."""

    def __init__(self) -> None:
        self.channels: dict[Address, Channel] = {}
        self.budget = Budget()
        self.progress: Progress | None = None  # what was told last

    async def look(self, progress: Progress) -> Standings:
        """See `Limits.look`."""
        self.progress = progress
        channels = {account: self.channels.get(account, ENOUGH) for account in progress.earners}
        return Standings(self.budget, channels)
