"""A small shell of the round machine: a coordinator with its journal, and peers of all kinds.

`Shell` tells the machine events and keeps what it asks for, as a coordinator does; `crash` makes
its state again from the journal. `World` adds peers that hold real digests, a router, and time.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random

from contracts.terms.chunks import Chunking
from contracts.terms.digest import digest
from contracts.terms.ids import ZERO_DIGEST, Address, ChunkIndex, Digest, JobId, PeerId, StageIndex
from contracts.terms.items import ItemNumber, ranges_of
from contracts.terms.moments import UnixMillis
from contracts.terms.targets import ItemWeights
from contracts.terms.work import MAX_SEQ, Output, RoundClosed, WorkClaim
from tests.support.history import make_claim, make_spec
from tests.support.local_jobs import of_local_steps
from training.rounds import events, owed
from training.rounds.events import Event
from training.rounds.journaled import decode_event, encode_event
from training.rounds.machine import advance, view
from training.rounds.sealing import is_last_round
from training.rounds.state import (
    COORDINATOR,
    Commit,
    Reduce,
    RoundState,
    Seal,
    Terms,
    What,
    Work,
    first_state,
)
from training.strategies.every_step.rules import EveryStep
from training.strategies.local.rules import Local
from training.strategies.port import (
    Bucket,
    Closing,
    Group,
    Item,
    Layout,
    Member,
    PureStrategy,
    Result,
    RoundNumber,
    Router,
)

JOB = JobId(digest("test", b"job"))
RULES = EveryStep()


def name(*parts: object) -> Digest:
    """A digest of these words."""
    return digest("test", repr(parts).encode())


def peer(letter: str) -> PeerId:
    """A peer whose id sorts as its name."""
    return PeerId(letter.encode().ljust(32, b"."))


def owner(letter: str) -> Address:
    """An account."""
    return Address(letter.encode().ljust(20, b"."))


def layout(
    groups: int = 1, items: int = 4, rounds: int = 3, buckets: int = 2, *, is_tied: bool = False
) -> Layout:
    """Each group has buckets of its own; where `is_tied` the first and the last share some more."""
    chunking = Chunking(groups, buckets, is_tied)
    return Layout(
        outputs={group: chunking.of_stage(group) for group in map(StageIndex, range(groups))},
        items_per_round=items,
        ordered_items=items * rounds,
    )


def terms(shape: Layout | None = None, peers: int = 1, *, is_checked: bool = False) -> Terms:
    """A round of 10 s; claims, delivery and reducing 1 s each; 0.3 s to hold; redo after 0.5 s."""
    shape = shape or layout()
    weights = ItemWeights(2, ZERO_DIGEST, 0)
    return Terms(
        JOB, shape, weights, peers, 10_000, 1000, 1000, 1000, 300, 500, 8000, is_checked=is_checked
    )


def member(
    who: PeerId, group: int = 0, *, of: Address | None = None, rate: int = 100, applied: int = 0
) -> Member:
    """Connected, and for an account of its own unless another is named."""
    account = of or Address(who[:20])
    return Member(who, StageIndex(group), "", RoundNumber(applied), account, rate, 1000)


def joining(
    who: PeerId, group: int = 0, *, of: Address | None = None, applied: int = 0, at: int = 1000
) -> events.Joined:
    """A peer comes; its owner is an account of its own unless another is named."""
    account = of or Address(who[:20])
    return events.Joined(
        who,
        StageIndex(group),
        account,
        "",
        RoundNumber(applied),
        ZERO_DIGEST,
        rate=100,
        bandwidth=1000,
        at=UnixMillis(at),
    )


def replay(terms: Terms, stored: Iterable[bytes], rules: Closing = RULES) -> RoundState:
    """The state that journaled events lead to from the beginning."""
    state = first_state(terms)
    for event in map(decode_event, stored):
        state, _ = advance(state, event, rules)
    return state


def result(who: PeerId, group: int, item: int, *, given: bool = False, salt: int = 0) -> Result:
    """What a peer made of an item: its output has the name that the next group reads."""
    salts = {group - 1: 0, group: salt}
    tensors = tuple(
        (f"y/{place}/{item}", name("y", place, item, salts[place])) for place in salts if place >= 0
    )
    return Result(StageIndex(group), ItemNumber(item), who, tensors, given=given)


def claim_of(
    who: PeerId,
    group: int,
    items: Iterable[int],
    *,
    round: int = 1,
    seq: int = 0,
    base: Digest | None = None,
    shape: Layout | None = None,
) -> WorkClaim:
    """An honest claim of these items."""
    items = sorted(items)
    own = (shape or layout()).outputs[StageIndex(group)]
    return make_claim(
        "work",
        job=JOB,
        peer=who,
        previous=name("seal", round),
        round=RoundNumber(round),
        group=StageIndex(group),
        seq=seq,
        base=base or name("base", group),
        items=ranges_of(map(ItemNumber, items)),
        leaves=name("leaves", who, round, seq, items),
        outputs=tuple(
            Output(
                bucket=ChunkIndex(place),
                digest=name("shard", who, round, seq, items, place),
                norm_squared=1,
            )
            for place in range(len(own))
        ),
    )


def bucket_claim(who: PeerId, closed: RoundClosed, bucket: Bucket, salt: int = 0) -> WorkClaim:
    """What a bucket comes to: the same for every honest reducer."""
    group, number = bucket
    mean = Output(
        bucket=number,
        digest=name("bucket", closed.digest(), bucket, salt),
        norm_squared=1,
    )
    return make_claim(
        "bucket",
        job=JOB,
        peer=who,
        previous=name("seal", closed.round),
        round=closed.round,
        group=group,
        subject=closed.digest(),
        outputs=(mean,),
    )


@dataclass(frozen=True)
class Moment:
    """One event of a history, what it led to, and what it asked for."""

    event: Event
    before: RoundState
    state: RoundState
    effects: tuple[events.Effect, ...]


class Shell:
    """What a coordinator does around its machine; `now` is the time of the next event."""

    def __init__(self, terms: Terms, rules: Closing = RULES) -> None:
        """A job that nobody has joined."""
        self.terms, self.rules, self.state = terms, rules, first_state(terms)
        self.now = UnixMillis(1000)
        self.journal: list[bytes] = []
        self.moments: list[Moment] = []
        self.keeping: dict[Digest, tuple[PeerId, ...]] = {}

    def tell(self, event: Event) -> tuple[events.Effect, ...]:
        """One event; what it asks for is kept until it is done, or the process ends."""
        before = self.state
        self.state, effects = advance(before, event, self.rules)
        self.journal.append(encode_event(event))
        self.moments.append(Moment(event, before, self.state, effects))
        for effect in effects:
            if isinstance(effect, events.KeepBytes):
                self.keeping |= dict(effect.wanted)
        return effects

    @property
    def seal_due(self) -> tuple[int, What, bool] | None:
        """Of which round, what of it, and whether it is the last."""
        match self.state.phase:
            case Seal(what=what):
                return self.state.round, what, is_last_round(self.state)
        return None

    def crash(self) -> None:
        """The process is killed and starts again from its journal."""
        before = self.state
        self.keeping = {}
        self.state = replay(self.terms, self.journal, self.rules)
        assert self.state == before
        self.tell(events.Controlled("resumed", self.now))

    def store_seal(self) -> None:
        """The seal that is due is stored."""
        if self.seal_due is not None:
            self.tell(events.Sealed(self.state.round, self.seal_due[2], self.now))

    def pass_time(self, until: int) -> None:
        """Tick at every moment that matters up to `until`."""
        while (at := owed.next_deadline(self.state, after=self.now)) is not None and at <= until:
            self.now = at
            self.tell(events.Ticked(at))
        self.now = UnixMillis(max(self.now, until))

    # What honest peers do, for tests that name each step.

    def work(self, who: PeerId, *items: int, **how: int) -> None:
        """Results of a peer."""
        group = self.state.members[who].group
        results = tuple(result(who, group, item, **how) for item in items)  # type: ignore[arg-type]
        self.tell(events.ItemsDone(who, results, self.now))

    def claim(self, *peers: PeerId) -> None:
        """Each peer that is asked for a claim gives it."""
        for who in peers:
            asked = owed.owed(self.state, who)
            assert isinstance(asked, owed.AskClaim)
            group = self.state.members[who].group
            claim = claim_of(
                who,
                group,
                asked.items,
                round=asked.round,
                seq=asked.seq,
                shape=self.terms.layout,
            )
            self.tell(events.WorkClaimed(claim, self.now))

    def deliver(self, *holders: PeerId) -> None:
        """Each holds what it is to hold."""
        for who in holders:
            assert isinstance(self.state.phase, Commit)
            lacking = self.state.phase.lacking
            shards = frozenset().union(*lacking.values())
            wanted = shards if who == COORDINATOR else lacking.get(who, frozenset())
            self.tell(events.Held(who, wanted, self.now))

    def reduce(self, *peers: PeerId) -> None:
        """Each claims the buckets that it is asked for."""
        for who in peers:
            asked = owed.owed(self.state, who)
            assert isinstance(asked, owed.AskBuckets)
            for bucket in sorted(asked.buckets):
                claim = bucket_claim(who, asked.closed, bucket)
                self.tell(events.Reduced(claim, b"s" * 64, self.now))

    def hold(self, *holders: PeerId) -> None:
        """Each holds all buckets that are reduced."""
        for who in holders:
            assert isinstance(self.state.phase, Reduce)
            own = frozenset(self.state.phase.holders)
            self.tell(events.Held(who, own, self.now))

    def apply(self, *peers: PeerId) -> None:
        """Each has applied the newest seal."""
        for who in peers:
            self.tell(events.Applied(who, self.state.newest_seal, self.now))


# --------------------------------------------------------------------------------- random histories

MOODS = ("honest", "honest", "honest", "slow", "silent", "denying", "withholding", "idle", "lying")
"""`slow` does one thing in ten; `silent` nothing; `denying` never says what it holds; `withholding`
gives nothing to others; `idle` reduces nothing; `lying` claims false buckets and withholds them; in
jobs of local steps `late` gives a shard when its claim is late."""


@dataclass
class Peer:
    """A member, and what it has on disk."""

    who: PeerId
    group: Group
    owner: Address
    mood: str = "honest"
    has: set[Digest] = field(default_factory=set)
    signed: dict[tuple[int, int], WorkClaim] = field(default_factory=dict)

    def gives(self, wanted: Digest, late: Collection[Digest]) -> bool:
        """Whether others can fetch these bytes from it while it is connected."""
        if self.mood == "late":
            return wanted in late
        return wanted in self.has and self.mood not in ("silent", "withholding", "lying")


class World:
    """Peers of a job, a router that deals, and a coordinator that may be killed."""

    def __init__(self, seed: int, *, is_local: bool = False) -> None:
        """A history is named by its seed; of `every_step`, or of local steps."""
        self.chance = chance = Random(seed)
        groups, per_group = chance.choice((1, 2, 2, 3)), chance.choice((1, 2, 3))
        num_items, num_buckets = chance.choice((2, 4)), chance.choice((1, 3))
        shape = layout(groups, num_items, 4, num_buckets, is_tied=chance.random() < 0.3)
        self.rules: PureStrategy = RULES
        if is_local:
            groups, per_group = 1, chance.choice((2, 3, 4))
            quorum, segments = chance.choice((1, 2)), chance.choice((1, 2))
            size = {"units_per_step": per_group * segments, "peers_per_stage": per_group}
            local = of_local_steps(segments=segments, quorum=quorum)
            spec = make_spec(**(local | size), steps=4)
            self.rules = Local(spec)
            shape = self.rules.layout(spec)
        self.rates = {} if not is_local else {peer(letter): 10**8 for letter in "abcdefghi"}
        is_checked = chance.random() < 0.2
        self.shell = Shell(terms(shape, per_group, is_checked=is_checked), self.rules)
        accounts = [owner(letter) for letter in "ABC"[: chance.choice((1, 2, 3))]]
        self.peers = {
            who: Peer(who, StageIndex(number % groups), chance.choice(accounts))
            for number in range(groups * per_group)
            for who in [peer("abcdefghi"[number])]
        }
        self.dealt: dict[tuple[Group, Item], tuple[PeerId, int]] = {}
        self.steady: set[PeerId] = set()  # stay honest and connected
        self.is_calm = False  # nothing new goes wrong
        for each in self.peers.values():
            self._tell(joining(each.who, each.group, of=each.owner, at=self.shell.now))

    @property
    def state(self) -> RoundState:
        """The coordinator's state."""
        return self.shell.state

    def _tell(self, event: Event) -> None:
        self.shell.tell(event)

    def live(self, num_steps: int) -> None:
        """Things happen, most of them what is due."""
        usual = (
            self.deal,
            self.compute,
            self.compute,
            self.answer,
            self.fetch,
            self.keep,
            self.seal,
        )
        rare = (self.come_and_go, self.change_mood, self.crash, self.control, self.check, self.lose)
        for _ in range(num_steps):
            if not self.is_calm and self.chance.random() < 0.03:
                self.chance.choice(rare)()
            elif self.chance.random() < 0.1:
                self.tick()
            else:
                self.shell.now = UnixMillis(self.shell.now + self.chance.choice((0, 1, 10)))
                self.chance.choice(usual)()

    def settle(self) -> None:
        """From now on one peer of each group is steady, and nobody else changes for the better."""
        now = self.shell.now
        for group in self.shell.terms.groups:
            each = next(each for each in self.peers.values() if each.group == group)
            self.steady.add(each.who)
            each.mood = "honest"
            applied = self.state.newest_seal
            member = self.state.members.get(each.who)
            if member is not None and member.is_leaving:
                self._tell(events.Disconnected(each.who, now))
                self.shell.pass_time(now + self.shell.terms.lease_grace)
                now = self.shell.now
            if each.who not in self.state.members:
                self._tell(joining(each.who, group, of=each.owner, applied=applied, at=now))
            elif not self._here(each.who):
                self._tell(events.Connected(each.who, "", applied, now))
        self._tell(events.Controlled("go_on", now))
        if self.shell.terms.is_checked:
            everybody = frozenset(self.peers)
            self._tell(events.Checked(everybody, True, False, frozenset(), True, (), now))
        for each in self.peers.values():  # so that the first round begins
            if not self.state.started and each.who not in self.state.members:
                self._tell(joining(each.who, each.group, of=each.owner, at=now))
            elif not self.state.started and not self._here(each.who):
                self._tell(events.Connected(each.who, "", self.state.newest_seal, now))
        self.is_calm = self.chance.random() < 0.5

    # ------------------------------------------------------------------------------ what is due

    def _here(self, who: PeerId) -> bool:
        member = self.state.members.get(who)
        return member is not None and member.is_here

    def _acting(self) -> list[Peer]:
        """Peers that do something now, in random order."""
        acting = [
            each
            for each in self.peers.values()
            if self._here(each.who)
            and each.mood != "silent"
            and (each.mood != "slow" or self.chance.random() < 0.1)
        ]
        self.chance.shuffle(acting)
        return acting

    def deal(self) -> None:
        """The router deals, and takes back what is out for too long."""
        if not isinstance(self.state.phase, Work):
            self.dealt = {}
            return
        late = {who for who, at in self.dealt.values() if self.shell.now >= at + 400}
        for who in sorted(late):
            self.dealt = {place: each for place, each in self.dealt.items() if each[0] != who}
            self._tell(events.ItemsLost(who, (), self.shell.now, off=True))
        if not isinstance(self.state.phase, Work):
            return
        dealt: dict[Group, dict[Item, PeerId]] = {}
        for (group, item), (who, _) in self.dealt.items():
            dealt.setdefault(group, {})[item] = who
        room = {each: 2 for each in self.state.members}
        router = Router(room=room, dealt=dealt, rates=self.rates)
        for each in self.rules.assign(view(self.state, self.shell.now, router)):
            for item in each.items:
                self.dealt[each.group, item] = each.peer, self.shell.now

    def compute(self) -> None:
        """A peer has done an item."""
        for each in self._acting():
            own = [place for place, (who, _) in self.dealt.items() if who == each.who]
            if own:
                group, item = self.chance.choice(own)
                self.dealt.pop((group, item))
                made = self._made(each, item)
                self._tell(events.ItemsDone(each.who, (made,), self.shell.now))
                return

    def _made(self, each: Peer, item: Item) -> Result:
        group, salt = each.group, int(self.chance.random() < 0.05)
        phase = self.state.phase
        known: dict[str, Digest] = {}
        if isinstance(phase, Work):
            for results in phase.open.counted.values():
                known |= dict(results[item].tensors) if item in results else {}
        names = [f"y/{boundary}/{item}" for boundary in (group - 1, group) if boundary >= 0]
        tensors = tuple((each, known.get(each, name(each, salt))) for each in names)
        if self.chance.random() < 0.03:
            tensors = tuple((each, name(each, 2)) for each in names)  # it fits to nobody's
        given = f"y/{group}/{item}" in known
        return Result(group, item, each.who, tensors, given=given)

    def answer(self) -> None:
        """A peer does what it is owed a call for."""
        for each in self._acting():
            match owed.owed(self.state, each.who):
                case owed.ApplySeal(round):
                    self._tell(events.Applied(each.who, round, self.shell.now))
                    return
                case owed.AskClaim() as asked:
                    self._claim(each, asked)
                    return
                case owed.AskBuckets() as asked if each.mood != "idle":
                    self._reduce(each, asked)
                    return

    def _claim(self, each: Peer, asked: owed.AskClaim) -> None:
        numbers = {seq for round, seq in each.signed if round == asked.round}
        claim = next(
            (
                known
                for seq in sorted(numbers)
                if seq >= asked.seq
                for known in [each.signed[asked.round, seq]]
                if asked.items.issuperset(known.numbers)
            ),
            None,
        )
        if claim is None:
            seq = max(asked.seq, *(number + 1 for number in numbers), 0)
            if seq > MAX_SEQ:
                return
            base = name("base", each.group, self.state.updates)
            odd = name("odd") if self.chance.random() < 0.03 else base
            claim = claim_of(
                each.who,
                each.group,
                asked.items,
                round=asked.round,
                seq=seq,
                base=odd,
                shape=self.shell.terms.layout,
            )
            each.signed[asked.round, seq] = claim
            each.has.update(output.digest for output in claim.outputs)
        if self.is_calm or self.chance.random() < 0.9:  # else the answer is lost
            self._tell(events.WorkClaimed(claim, self.shell.now))

    def _reduce(self, each: Peer, asked: owed.AskBuckets) -> None:
        phase = self.state.phase
        assert isinstance(phase, Reduce)
        bucket = min(asked.buckets)
        shards = self._shards(phase.open.claims, bucket, asked.closed.weights)
        if all(self._get(each, shard) for shard in shards):
            claim = bucket_claim(each.who, asked.closed, bucket, int(each.mood == "lying"))
            each.has.add(claim.outputs[0].digest)
            self._tell(events.Reduced(claim, b"s" * 64, self.shell.now))

    def _shards(
        self, claims: Mapping[Digest, WorkClaim], bucket: Bucket, merged: Iterable[Digest]
    ) -> list[Digest]:
        outputs = self.shell.terms.layout.outputs
        return [
            claims[each].outputs[outputs[claims[each].group].index(bucket)].digest
            for each in merged
            if bucket in outputs[claims[each].group]
        ]

    def _get(self, each: Peer, wanted: Digest) -> bool:
        """Whether it has these bytes now, fetched from whoever gives them."""
        if wanted in each.has:
            return True
        open = getattr(self.state.phase, "open", None)
        kept = open is not None and wanted in open.held.get(COORDINATOR, ())
        late = self._late()
        givers = (p for p in self.peers.values() if p.gives(wanted, late))
        if kept or any(self._here(giver.who) for giver in givers):
            each.has.add(wanted)
            return True
        return False

    def _late(self) -> set[Digest]:
        """Shards of late claims."""
        open = getattr(self.state.phase, "open", None)
        claims = [open.claims[name] for name in self.state.late] if open is not None else []
        return {output.digest for claim in claims for output in claim.outputs}

    def fetch(self) -> None:
        """A peer fetches what it is to hold, and says so."""
        phase = self.state.phase
        for each in self._acting():
            wanted: set[Digest] = set()
            if isinstance(phase, Commit):
                wanted |= phase.lacking.get(each.who, frozenset())
            if isinstance(phase, Reduce):
                own = self.shell.terms.layout.outputs[each.group]
                wanted |= {
                    phase.buckets[bucket].message.outputs[0].digest
                    for bucket in own
                    if bucket in phase.buckets
                } - phase.open.held.get(each.who, frozenset())
            got = frozenset(digest for digest in sorted(wanted) if self._get(each, digest))
            if got and each.mood != "denying":
                self._tell(events.Held(each.who, got, self.shell.now))
                return

    def keep(self) -> None:
        """The coordinator fetches what it was asked to keep."""
        got, late = set(), self._late()
        for wanted, givers in self.shell.keeping.items():
            able = (self.peers[who] for who in givers if who in self.peers)
            if any(p.gives(wanted, late) and self._here(p.who) for p in able):
                got.add(wanted)
        self.shell.keeping = {
            wanted: givers for wanted, givers in self.shell.keeping.items() if wanted not in got
        }
        if got:
            self._tell(events.Held(COORDINATOR, frozenset(got), self.shell.now))

    def seal(self) -> None:
        """The seal that is due is stored; in a checked job it is asked what may be closed then."""
        was_due = self.shell.seal_due
        self.shell.store_seal()
        if was_due and self.shell.terms.is_checked:
            told = self.state.may_work, True, self.state.is_clear, frozenset[Digest](), False, ()
            self._tell(events.Checked(*told, self.shell.now))

    def tick(self) -> None:
        """Time goes on to where it matters, or a little."""
        soon = owed.next_deadline(self.state, after=self.shell.now)
        jump = self.shell.now + self.chance.choice((50, 200))
        at = min(soon, jump) if soon is not None else jump
        self.shell.now = UnixMillis(max(self.shell.now, at))
        self._tell(events.Ticked(self.shell.now))

    # --------------------------------------------------------------------------- what goes wrong

    def _any(self) -> Peer:
        others = [each for each in self.peers.values() if each.who not in self.steady]
        return self.chance.choice(others or [*self.peers.values()])

    def come_and_go(self) -> None:
        """A peer is lost, comes back, leaves, or joins again."""
        each, now = self._any(), self.shell.now
        away = [other for other in self.peers.values() if not self._here(other.who)]
        if away and self.chance.random() < 0.7:
            each = self.chance.choice(away)
        if each.who in self.steady:
            return
        if each.who not in self.state.members:
            applied = self.state.newest_seal
            self._tell(joining(each.who, each.group, of=each.owner, applied=applied, at=now))
        elif not self._here(each.who):
            behind = int(self.chance.random() < 0.2)
            applied = RoundNumber(max(0, self.state.newest_seal - behind))
            self._tell(events.Connected(each.who, "", applied, now))
        elif self.chance.random() < 0.1:
            self._tell(events.LeaveAsked(each.who, now))
        else:
            self._tell(events.Disconnected(each.who, now))

    def change_mood(self) -> None:
        """A peer begins to misbehave, or stops."""
        each = self._any()
        if each.who not in self.steady:
            each.mood = self.chance.choice((*MOODS, *["late"] * 4) if self.rates else MOODS)

    def crash(self) -> None:
        """The coordinator is killed; its router forgets what is out."""
        if self.chance.random() < 0.2:
            self.shell.crash()
            self.dealt = {}
            for each in self.peers.values():  # most are back before anything else happens
                is_back = each.who in self.steady or self.chance.random() < 0.7
                if each.who in self.state.members and is_back:
                    newest = self.state.newest_seal
                    self._tell(events.Connected(each.who, "", newest, self.shell.now))

    def control(self) -> None:
        """The poster holds or goes on with the job, or stops it."""
        what = "go_on" if self.state.hold_from is not None else "hold"
        if self.chance.random() < 0.1:
            what = "stop"
        self._tell(events.Controlled(what, self.shell.now))  # type: ignore[arg-type]

    def check(self) -> None:
        """Draws, limits and bonds allow something else."""
        if not self.shell.terms.is_checked:
            return
        allowed = frozenset(self.peers) - (
            {self._any().who} if self.chance.random() < 0.3 else set()
        )
        notices: tuple[events.NoticeDue, ...] = ()
        if self.chance.random() < 0.1:
            each = self._any()
            what = self.chance.choice(("missed_report", "suspension"))
            notices = (events.NoticeDue(what, each.who, each.group, name("subject")),)  # type: ignore[arg-type]
        self._tell(
            events.Checked(
                allowed | self.steady,
                takes_work=self.chance.random() < 0.9,
                is_clear=self.chance.random() < 0.7,
                unsealed=frozenset(),
                seal_wanted=self.chance.random() < 0.5,
                notices=() if self.steady else notices,
                at=self.shell.now,
            )
        )

    def lose(self) -> None:
        """A peer lacks what it made, or nobody has an item's tensors."""
        phase = self.state.phase
        if not isinstance(phase, Work | Commit):
            return
        each = self._any()
        if self.chance.random() < 0.3:
            items = tuple(sorted(phase.open.issued))[:1]
            self._tell(events.ItemsLost(None, items, self.shell.now))
        else:
            own = tuple(sorted(phase.open.unclaimed.get(each.who, ())))[:1]
            self._tell(events.ItemsLost(each.who, own, self.shell.now))


def history(seed: int, num_steps: int = 400, *, is_local: bool = False) -> World:
    """A world after some time."""
    world = World(seed, is_local=is_local)
    world.live(num_steps)
    return world
