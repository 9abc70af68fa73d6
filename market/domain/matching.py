"""Which offers may serve a job, which of them run it, and at what price? Pure.

A bundle is `slots` leases (stages x peers of a stage), all or nothing until the job runs, and
`spares` more where they can be had. Once it runs, what is missing is bought one by one. Owners are
accounts, and an account sells one slot of a job, so a stage with two peers has two owners.

Clearing is uniform-price procurement for one job: every winner is paid the lowest losing ask,
capped by the buyer's reserve. Only a seller's cheapest ask is in the book, so its other offers
cannot raise its own price. Then asking one's true cost is dominant (Vickrey 1961, J. Finance
16(1)); one person with several wallets can still gain, as in every uniform-price auction.

Invariant: ask <= price <= reserve for every winner. Spares are bought with the slots, but one
seller stays a loser where there is one to spare: else the last winner's own ask would be the price,
or asking for spares would lift the price of all to the reserve. Spares that come later are bought
at the price that stands, from who asks less: so with an ask that stands, truth stays dominant over
both rounds, and no loser of the first wins in the second. Who comes first among equal asks has no
part in the price, so a good name wins ties and moves nothing else.

Invariant: `asks_of` and `exclusions_of` use the same table of constraints, so an offer is asked
exactly when no constraint excludes it. A relaxation is the least change of the job (or, where the
job cannot change it, the state of the offer) that would admit one more offer.

`Book` has all offers of a round, sorted once, so that a job finds its cheapest sellers without
judging all. Offers are places in the order in which clearing takes them (price, standing, id), and
a set of offers is the integer whose bits are their places. Each number that a job limits is a
column: for a limit it answers with the set of offers that meet it, from sums over blocks of its
sorted values. A job's offers are the intersection of five sets, and its cheapest seller is the
lowest bit. A book of n offers costs n log n, a job some sqrt(n).

Invariant: the book finds an offer exactly if `judge`, the plain definition, excludes it by nothing
(`tests/property/test_market_book.py`). `take` marks an offer as leased, and its account's stake as
promised: a book is one round's, and the round's purchases are in it.

Units: as in `market.domain.offers`.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import isqrt
from typing import NamedTuple

from contracts.terms.amounts import NOTHING, BaseUnits, PricePerPflop, in_tokens
from contracts.terms.errors import NoMatch
from contracts.terms.ids import Address, Digest
from contracts.terms.messages import JobSpec, class_name
from contracts.terms.moments import UnixMillis, UnixSeconds
from market.bodies.jobs import Excluded
from market.domain.offers import Candidate, is_heard, is_open
from market.domain.reputation import is_trusted, standing

# ---------------------------------------------------------------------------------------- clearing


@dataclass(frozen=True)
class Ask:
    """An offer's price, base units for 1e15 FLOPs; of equal ones the higher standing is first."""

    seller: Address
    offer: Digest
    price: PricePerPflop
    standing: int = 0


@dataclass(frozen=True)
class Clearing:
    """Winners in order of their asks, and what each is paid."""

    winners: tuple[Ask, ...]
    price: PricePerPflop


def clear(asks: Sequence[Ask], *, slots: int, reserve: PricePerPflop, spares: int = 0) -> Clearing:
    """Buy `slots` slots, and up to `spares` more, at the lowest losing ask, never above `reserve`.

    Raises:
        NoMatch: fewer than `slots` sellers ask at most `reserve`.
    """
    book = _best_of_each_seller(ask for ask in asks if ask.price <= reserve)
    if len(book) < slots:
        raise NoMatch(
            f"the job needs {slots} owners at {reserve} or less, {len(book)} fit",
            wanted=slots,
            offered=len(book),
        )
    bought = max(slots, min(slots + spares, len(book) - 1))
    winners, losers = book[:bought], book[bought:]
    return Clearing(tuple(winners), losers[0].price if losers else reserve)


def sell_at(asks: Sequence[Ask], *, slots: int, price: PricePerPflop) -> Clearing:
    """Buy up to `slots` slots at a price that stands, from the cheapest that ask less.

    Who asks just that price may have set it as the lowest loser, and is not bought: else the last
    loser would earn more by asking more.
    """
    book = _best_of_each_seller(ask for ask in asks if ask.price < price)
    return Clearing(tuple(book[:slots]), price)


def _best_of_each_seller(asks: Iterable[Ask]) -> list[Ask]:
    # Ties break by id in the end, so that everybody clears the same book the same way.
    best: dict[Address, Ask] = {}
    for ask in sorted(asks, key=lambda ask: (ask.price, -ask.standing, ask.offer)):
        best.setdefault(ask.seller, ask)
    return list(best.values())


# --------------------------------------------------------------------------------- what a job buys


@dataclass(frozen=True)
class Bundle:
    """How many leases a job must have, and how many more it may have."""

    slots: int
    spares: int

    def without(self, num_held: int) -> "Bundle":
        """What is missing beside `num_held` leases; which of them are spares nobody says."""
        short = max(0, self.slots - num_held)
        return Bundle(short, max(0, self.slots + self.spares - num_held - short))


@dataclass(frozen=True)
class Seat:
    """A lease that stands: the stage that it was meant for, and what it offers."""

    stage: int
    flops_per_second: int
    price: PricePerPflop


def bundle_of(spec: JobSpec) -> Bundle:
    """The leases that a job asks for."""
    return Bundle(spec.batch.stages * spec.batch.peers_per_stage, spec.batch.spares)


def buy(
    asks: Sequence[Ask],
    bundle: Bundle,
    held: Sequence[Seat],
    *,
    reserve: PricePerPflop,
    all_or_nothing: bool,
) -> Clearing:
    """Buy what is missing.

    Slots are cleared at the lowest losing ask. Spares that come after them are paid the least that
    a held lease is paid, and have to ask less, so their asks decide whether they come and not what
    they earn.

    Raises:
        NoMatch: `all_or_nothing`, and too few sellers for the slots; or nobody sells at all.
    """
    missing = bundle.without(len(held))
    if not missing.slots:
        price = min((seat.price for seat in held), default=reserve)
        return sell_at(asks, slots=missing.spares, price=price)
    slots, spares = missing.slots, missing.spares
    if not all_or_nothing:
        sellers = {ask.seller for ask in asks if ask.price <= reserve}
        slots, spares = min(slots, max(1, len(sellers))), 0
    return clear(asks, slots=slots, spares=spares, reserve=reserve)


def deal(speeds: Sequence[int], held: Sequence[Seat], *, num_stages: int) -> tuple[int, ...]:
    """The stage of each newcomer, by its FLOP/s: all stages as full, and as fast, as can be.

    The fastest first, each to the slowest of the stages with the fewest peers (longest processing
    time first, a round at a time). So numbers of peers differ by at most one and, without `held`,
    sums of FLOP/s by at most the largest one: a round gives more to a stage that has less, so no
    difference grows beyond what one round's fastest and slowest differ by.
    """
    peers = [sum(seat.stage == stage for seat in held) for stage in range(num_stages)]
    sums = [
        sum(seat.flops_per_second for seat in held if seat.stage == stage)
        for stage in range(num_stages)
    ]
    stages = [0] * len(speeds)
    for place in sorted(range(len(speeds)), key=lambda place: (-speeds[place], place)):
        neediest = min(range(num_stages), key=lambda stage: (peers[stage], sums[stage], stage))
        stages[place] = neediest
        peers[neediest] += 1
        sums[neediest] += speeds[place]
    return tuple(stages)


# ------------------------------------------------------------------------------------- constraints

_FAR = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp())


@dataclass(frozen=True)
class Need:
    """What a job asks of an offer."""

    price_ceiling: PricePerPflop
    memory_bytes: int
    min_stake: BaseUnits
    deadline: UnixSeconds
    now: UnixMillis
    devices: frozenset[str] | None = None
    """Classes whose work can be compared (`thresholds.class_name`); None: any will do."""


@dataclass(frozen=True)
class _Constraint:
    name: str
    holds: Callable[[Need, Candidate], bool]
    relaxation: Callable[[Need, Sequence[Candidate]], str]


def _cheapest(_: Need, failing: Sequence[Candidate]) -> str:
    return f"price_ceiling {in_tokens(min(each.price for each in failing))} tokens"


def _roomiest(_: Need, failing: Sequence[Candidate]) -> str:
    return f"memory {max(each.memory_bytes for each in failing) / 2**30:.3g} GiB"


def _richest(_: Need, failing: Sequence[Candidate]) -> str:
    return f"min_stake {in_tokens(max(each.free_stake for each in failing))} tokens"


def _longest(_: Need, failing: Sequence[Candidate]) -> str:
    return f"deadline {_utc(max(each.expires_at for each in failing))}"


def _soonest(_: Need, failing: Sequence[Candidate]) -> str:
    return f"wait until {_utc(min(each.available_from for each in failing))}"


def _utc(moment: UnixSeconds) -> str:
    if moment >= _FAR:
        return "the end of time"
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _is_measured(need: Need, offer: Candidate) -> bool:
    return need.devices is None or class_name(offer.device_class) in need.devices


def _measured(need: Need, _: Sequence[Candidate]) -> str:
    return f"a device of the calibration table: {', '.join(sorted(need.devices or ()))}"


_CONSTRAINTS = (
    _Constraint("price", lambda need, offer: offer.price <= need.price_ceiling, _cheapest),
    _Constraint("memory", lambda need, offer: offer.memory_bytes >= need.memory_bytes, _roomiest),
    _Constraint("stake", lambda need, offer: offer.free_stake >= need.min_stake, _richest),
    _Constraint("device", _is_measured, _measured),
    _Constraint("window", lambda need, offer: offer.expires_at >= need.deadline, _longest),
    _Constraint("start", lambda need, offer: offer.available_from * 1000 <= need.now, _soonest),
    _Constraint(
        "heartbeat",
        lambda need, offer: is_heard(offer.heard_at, need.now),
        lambda need, failing: "an agent that answers",
    ),
    _Constraint(
        "leased",
        lambda need, offer: not offer.leased,
        lambda need, failing: "wait for the end of its lease",
    ),
    _Constraint(
        "reputation",
        lambda need, offer: is_trusted(offer.reputation),
        lambda need, failing: "an account that was not found lying",
    ),
)

CONSTRAINTS = tuple(constraint.name for constraint in _CONSTRAINTS)
"""Names that `Excluded.constraint` may have."""


class Judged(NamedTuple):
    """An offer, and the names of the constraints that exclude it, in the order of the table."""

    offer: Candidate
    failed: tuple[str, ...]


def judge(need: Need, offers: Sequence[Candidate]) -> list[Judged]:
    """Hold every offer against every constraint, once."""
    table = [(constraint.name, constraint.holds) for constraint in _CONSTRAINTS]
    return [
        Judged(offer, tuple([name for name, holds in table if not holds(need, offer)]))
        for offer in offers
    ]


def asks_of(judged: Sequence[Judged]) -> list[Ask]:
    """The asks of offers that nothing excludes."""
    return [
        Ask(o.account, o.offer, o.price, standing(o.reputation))
        for o, failed in judged
        if not failed
    ]


def exclusions_of(need: Need, judged: Sequence[Judged]) -> tuple[Excluded, ...]:
    """For each constraint that excludes offers: how many, and what would admit one more.

    The relaxation is taken over offers that fail this constraint alone, if there are any: for them
    the change is enough by itself.
    """
    found = []
    for constraint in _CONSTRAINTS:
        failing = [offer for offer, failed in judged if constraint.name in failed]
        alone = [offer for offer, failed in judged if failed == (constraint.name,)]
        if failing:
            relaxed = constraint.relaxation(need, alone or failing)
            found.append(
                Excluded(constraint=constraint.name, offers=len(failing), would_fit=relaxed)
            )
    return tuple(found)


# ----------------------------------------------------------------------------- the book of a round


class _Column:
    """One number of all offers: which have at least so much of it."""

    def __init__(self, values: Sequence[int]) -> None:
        self._places = sorted(range(len(values)), key=values.__getitem__)
        self._sorted = [values[place] for place in self._places]
        self._step = max(1, isqrt(len(values)))
        self._sets: dict[int, int] = {}  # by rank of the limit
        above = bytearray(len(values) // 8 + 1)
        self._above = dict[int, int]()  # by rank, a multiple of the step: that rank and all above
        for rank in range(len(values), -1, -1):
            if rank < len(values):
                above[self._places[rank] >> 3] |= 1 << (self._places[rank] & 7)
            if rank % self._step == 0 or rank == len(values):
                self._above[rank] = int.from_bytes(above, "little")

    def at_least(self, limit: int) -> int:
        """The set of offers whose number is `limit` or more."""
        rank = bisect_left(self._sorted, limit)
        if rank not in self._sets:
            whole = min(-(-rank // self._step) * self._step, len(self._sorted))
            self._sets[rank] = self._above[whole] | _set_of(self._places[rank:whole])
        return self._sets[rank]


class Book:
    """What stands, as one round sees it."""

    def __init__(self, offers: Sequence[Candidate], now: UnixMillis) -> None:
        self.now = now
        self._offers = sorted(offers, key=lambda o: (o.price, -standing(o.reputation), o.offer))
        self._prices = [offer.price for offer in self._offers]
        self._place = {offer.offer: place for place, offer in enumerate(self._offers)}
        self._memory = _Column([offer.memory_bytes for offer in self._offers])
        self._stake = _Column([offer.free_stake for offer in self._offers])
        self._ends = _Column([offer.expires_at for offer in self._offers])
        self._classes: dict[str, list[int]] = {}
        self._accounts: dict[Address, list[int]] = {}
        ready = []
        for place, offer in enumerate(self._offers):
            self._classes.setdefault(class_name(offer.device_class), []).append(place)
            self._accounts.setdefault(offer.account, []).append(place)
            if is_open(offer, now):
                ready.append(place)
        self._ready = _set_of(ready)
        self._of_devices: dict[frozenset[str], int] = {}
        self._lessened = set[int]()  # open places that have less free stake than their column says

    def offers(self, without: Collection[Address] = ()) -> list[Candidate]:
        """All that stand, leased ones too, but those of some accounts; cheapest first."""
        return [offer for offer in self._offers if offer.account not in without]

    def num_offers(self, without: Collection[Address] = ()) -> int:
        """How many those are."""
        return len(self._offers) - sum(len(self._accounts.get(each, ())) for each in without)

    def is_free(self, offer: Digest) -> bool:
        """Whether it stands, was heard lately, and is in no lease."""
        place = self._place.get(offer)
        if place is None:
            return False
        found = self._offers[place]
        return is_heard(found.heard_at, self.now) and not found.leased

    def take(self, offer: Digest, *, stake: BaseUnits = NOTHING) -> None:
        """Mark an offer as leased, for what comes later in the round.

        Args:
            offer: Which; one that is not here changes nothing.
            stake: Base units that its account promises by that.
        """
        place = self._place.get(offer)
        if place is None:
            return
        self._offers[place] = replace(self._offers[place], leased=True)
        self._ready &= ~(1 << place)
        for each in self._accounts[self._offers[place].account] if stake else ():
            left = BaseUnits(max(0, self._offers[each].free_stake - stake))
            self._offers[each] = replace(self._offers[each], free_stake=left)
            if each != place:
                self._lessened.add(each)

    def fitting(
        self,
        need: Need,
        without: Collection[Address] = (),
        bonded: Collection[Address] = (),
    ) -> int:
        """The set of offers that nothing excludes.

        Args:
            need: What is wanted; its `now` is the book's moment.
            without: Accounts whose offers do not count.
            bonded: Accounts that have the stake behind it already.
        """
        affordable = (1 << bisect_left(self._prices, need.price_ceiling + 1)) - 1
        found = self._ready & affordable & self._memory.at_least(need.memory_bytes)
        found &= self._ends.at_least(need.deadline)
        if need.devices is not None:
            found &= self._of(need.devices)
        short = [n for n in self._lessened if self._offers[n].free_stake < need.min_stake]
        able = self._stake.at_least(need.min_stake) & ~_set_of(short)
        for account in bonded:
            able |= _set_of(self._accounts.get(account, ()))
        found &= able
        for account in without:
            found &= ~_set_of(self._accounts.get(account, ()))
        return found

    def cheapest(self, fitting: int, num_sellers: int) -> list[Ask]:
        """The best ask of each of the first sellers in a set, at most `num_sellers` of them."""
        asks = list[Ask]()
        while fitting and len(asks) < num_sellers:
            offer = self._offers[(fitting & -fitting).bit_length() - 1]
            asks.append(Ask(offer.account, offer.offer, offer.price, standing(offer.reputation)))
            fitting &= ~_set_of(self._accounts[offer.account])
        return asks

    def _of(self, devices: frozenset[str]) -> int:
        if devices not in self._of_devices:
            places = [place for name in devices for place in self._classes.get(name, ())]
            self._of_devices[devices] = _set_of(places)
        return self._of_devices[devices]


def _set_of(places: Sequence[int]) -> int:
    if len(places) == 1:
        return 1 << places[0]
    found = bytearray(max(places, default=0) // 8 + 1)
    for place in places:
        found[place >> 3] |= 1 << (place & 7)
    return int.from_bytes(found, "little")
