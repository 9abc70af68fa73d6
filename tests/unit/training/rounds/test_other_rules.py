"""The machine under a strategy that merges what came in time, as one without a pipeline would."""

from collections.abc import Sequence

from contracts.terms.ids import PeerId
from contracts.terms.messages import LocalSpec
from contracts.terms.moments import UnixMillis
from tests.support.history import make_spec
from tests.support.rounds import claim_of, joining, layout, peer, result, terms
from training.rounds import events
from training.rounds.machine import advance
from training.rounds.state import Commit, Reduce, Seal, Work, first_state
from training.strategies.local.rules import Local
from training.strategies.port import Closing, Decision, View

A, B, C = peer("a"), peer("b"), peer("c")


class Quorum:
    """Work lasts its time; two claims that are delivered are enough."""

    def closes(self, view: View) -> Decision:
        """See `Closing.closes`."""
        if view.ends is None or view.now < view.ends:
            return "wait"
        if view.phase == "work":
            return "close" if view.begun() else "wait"
        return "close" if len(view.delivered) >= 2 else "wait"


class Job:
    """Three peers of one group, each with one item."""

    def __init__(self, rules: Closing | None = None, done: Sequence[PeerId] = (A, B, C)) -> None:
        """These have done their item when the time of work is over."""
        self.rules = rules or Quorum()
        self.terms = terms(layout(1, 3, 3, 1), 3)
        self.state, self.now = first_state(self.terms), 1000
        self.effects: tuple[events.Effect, ...] = ()
        for number, who in enumerate((A, B, C)):
            self.tell(joining(who))
            if who in done:
                made = result(who, 0, number)
                self.tell(events.ItemsDone(who, (made,), UnixMillis(self.now)))
        self.wait(self.terms.round_ms)

    def tell(self, event: events.Event) -> None:
        """One event."""
        self.state, self.effects = advance(self.state, event, self.rules)

    def wait(self, span: int) -> None:
        """Time passes."""
        self.now += span
        self.tell(events.Ticked(UnixMillis(self.now)))

    def claim(self, *peers: bytes) -> None:
        """These claim their item."""
        for number, who in enumerate((A, B, C)):
            if who in peers:
                claim = claim_of(who, 0, [number], shape=self.terms.layout)
                self.tell(events.WorkClaimed(claim, UnixMillis(self.now)))

    def deliver(self) -> None:
        """Everybody holds what it is to hold."""
        assert isinstance(self.state.phase, Commit)
        for who, shards in self.state.phase.lacking.items():
            self.tell(events.Held(who, shards, UnixMillis(self.now)))


def test_local__one_owner_of_three_is_done__round_is_void() -> None:
    local = LocalSpec(
        inner_steps=2, segments=1, rewarm_steps=1, outer_rate=1, outer_momentum=0, round_time=1000,
        quorum=2,
    )  # fmt: skip
    rules = Local(make_spec(strategy="local", units_per_step=3, local=local))
    job = Job(rules, done=(A,))

    job.claim(A)
    job.deliver()
    job.wait(job.terms.deliver_ms)
    job.wait(job.terms.deliver_ms)

    assert isinstance(job.state.phase, Seal) and job.state.phase.what == "void"


def test_quorum__claim_is_missing__others_are_merged() -> None:
    job = Job()
    job.claim(A, B)
    job.wait(job.terms.commit_ms)
    job.claim(C)  # too late: it could have seen what others claimed
    job.deliver()
    job.wait(job.terms.deliver_ms)

    assert isinstance(job.state.phase, Reduce)
    merged = job.state.phase.closed.weights.keys()
    assert {job.state.phase.open.claims[each].peer for each in merged} == {A, B}


def test_quorum__missed_twice__round_is_void() -> None:
    job = Job()
    job.claim(A)
    job.wait(job.terms.commit_ms)
    job.wait(job.terms.deliver_ms)
    assert isinstance(job.state.phase, Commit) and job.state.phase.extended

    job.wait(job.terms.deliver_ms)

    assert isinstance(job.state.phase, Seal) and job.state.phase.what == "void"
    assert len(job.state.phase.open.claims) == 1


def test_work__strategy_waits_at_its_end_twice__round_is_void() -> None:
    job = Job()
    job.state = first_state(job.terms)
    for who in (A, B, C):
        job.tell(joining(who, at=job.now))
    job.wait(job.terms.round_ms)
    assert isinstance(job.state.phase, Work) and job.state.phase.extended

    job.wait(job.terms.round_ms)

    assert isinstance(job.state.phase, Seal) and job.state.phase.what == "void"
