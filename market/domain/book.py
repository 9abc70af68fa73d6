"""All offers of a round, sorted once, so that a job finds its cheapest sellers without judging all.

Offers are places in the order in which clearing takes them (price, standing, id), and a set of
offers is the integer whose bits are their places. Each number that a job limits is a column: for a
limit it answers with the set of offers that meet it, from sums over blocks of its sorted values. A
job's offers are the intersection of five sets, and its cheapest seller is the lowest bit.

Invariant: an offer is found exactly if `matching.judge`, the plain definition, excludes it by
nothing (`tests/property/test_market_book.py`). `take` marks an offer as leased, and its account's
stake as promised: a book is one round's, and the round's purchases are in it.

Units as in `market.domain.offers`. Time: a book of n offers costs n log n, a job some sqrt(n).
"""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import replace
from math import isqrt

from contracts.terms.amounts import BaseUnits
from contracts.terms.ids import Address, Digest
from contracts.terms.moments import UnixMillis
from market.domain.auction import Ask
from market.domain.depth import is_open
from market.domain.matching import Need
from market.domain.offers import Candidate, is_heard
from market.domain.reputation import standing
from verification.distances.thresholds import class_name

NOTHING = BaseUnits(0)


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

    def fitting(self, need: Need, without: Collection[Address] = ()) -> int:
        """The set of offers that nothing excludes, but those of some accounts.

        `need.now` is the book's moment.
        """
        affordable = (1 << bisect_left(self._prices, need.price_ceiling + 1)) - 1
        found = self._ready & affordable & self._memory.at_least(need.memory_bytes)
        found &= self._stake.at_least(need.min_stake) & self._ends.at_least(need.deadline)
        if need.devices is not None:
            found &= self._of(need.devices)
        short = [n for n in self._lessened if self._offers[n].free_stake < need.min_stake]
        found &= ~_set_of(short)
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
