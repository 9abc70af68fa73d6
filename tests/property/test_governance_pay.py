"""Pay over any run of steps: only for sealed work, each item once, vested W steps later.

The oracle counts FLOPs by itself, with fractions and one rounding at the end.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from contracts.governance import record, seals, vesting
from contracts.governance.checking import Standing
from contracts.governance.pay import Lease
from contracts.terms.amounts import Flops, PricePerPflop
from contracts.terms.errors import TallystickError
from contracts.terms.history import Kept, Leaves
from contracts.terms.ids import Address, PeerId, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.signatures import Signed
from tests.support.history import JobMaker, Member, under

PEERS = tuple(PeerId(bytes([n]) * 32) for n in range(3))
LEASES = {
    peer: Lease(Address(bytes([n // 2 + 1]) * 20), PricePerPflop(10**6 + n))
    for n, peer in enumerate(PEERS)
}

work = st.dictionaries(st.sampled_from(PEERS), st.integers(1, 10**17), max_size=3)


def earned(steps_done: Sequence[dict[PeerId, int]]) -> dict[Address, int]:
    """What these steps are worth: per lease, rounded once."""
    amounts: dict[Address, int] = {}
    for peer, lease in LEASES.items():
        flops = sum(step.get(peer, 0) for step in steps_done)
        value = int(Fraction(flops * lease.price, 10**15))
        amounts[lease.account] = amounts.get(lease.account, 0) + value
    return {account: amount for account, amount in amounts.items() if amount}


@given(run=st.lists(work, min_size=1, max_size=12), window=st.integers(0, 5), ends=st.booleans())
def test_pay__any_run_of_steps__is_earned_once_and_vests_in_time(
    run: list[dict[PeerId, int]], window: int, ends: bool
) -> None:
    """Pay after every step is what the steps so far, and those older than W, are worth."""
    state: Any = vesting.PayState(window=window)
    for number, done in enumerate(run, start=1):
        last = ends and number == len(run)
        work = {peer: Flops(flops) for peer, flops in done.items()}
        standing = Standing(settled_to=StepNumber(number))
        state = vesting.advance(state, StepNumber(number), work, standing, last=last)
        pay = {leaf.account: leaf for leaf in vesting.pay_after(state, LEASES)}
        ripe = number if last else max(0, number - window)
        assert {account: leaf.earned for account, leaf in pay.items()} == earned(run[:number])
        found = {account: leaf.vested for account, leaf in pay.items() if leaf.vested}
        assert found == earned(run[:ripe])


def test_pay__claim_that_round_closed_does_not_name__earns_nothing() -> None:
    """A peer is paid for what RoundClosed names, whatever else it claims."""
    maker = JobMaker()
    maker.seal_step()
    rounds = {update: maker.step_items(update=update) for update in (True, False)}
    honest = {
        update: seals.derive_seal(maker.record, under(items), last=False)
        for update, items in rounds.items()
    }

    @given(
        member=st.sampled_from(maker.members),
        items=st.sets(st.integers(6, 14), min_size=1),
        update=st.booleans(),
        seq=st.integers(0, 2),
    )
    def check(member: Member, items: set[int], update: bool, seq: int) -> None:
        chosen = tuple(ItemNumber(item) for item in sorted(items))
        claim, leaves = maker.claim(member, chosen, seq=seq)
        more: list[Kept] = [member.session.sign(claim), Leaves(claim.digest(), leaves)]
        if claim.digest() in honest[update].names:
            return
        found = seals.derive_seal(maker.record, under([*rounds[update], *more]), last=False)
        assert found.seal == honest[update].seal

    check()


def test_seal__any_item_is_left_out__is_refused() -> None:
    """With any item that it covers missing, the coordinator's seal is refused."""
    maker = JobMaker()
    maker.seal_step()
    items = maker.step_items()
    seal = maker.coordinator.sign(
        seals.derive_seal(maker.record, under(items), last=False).seal, maker.domain
    )

    @given(left_out=st.sets(st.integers(0, len(items) - 1), min_size=1))
    def check(left_out: set[int]) -> None:
        kept = [item for index, item in enumerate(items) if index not in left_out]
        try:
            seals.verify_seal(maker.record, seal, under(kept))
        except TallystickError:
            return
        raise AssertionError(f"accepted without {left_out}")

    check()


def test_signature__of_another_party__is_refused() -> None:
    """A message of a step counts only with the signature of whom it binds."""
    maker = JobMaker()
    maker.seal_step()
    items = [item for item in maker.step_items() if isinstance(item, Signed)]
    sessions = [maker.session, *(member.session for member in maker.members)]

    @given(item=st.sampled_from(items), session=st.sampled_from(sessions))
    def check(item: Signed[Any], session: Any) -> None:
        signed = session.sign(item.message)
        try:
            record.check_signature(maker.record, signed)
        except TallystickError:
            return
        assert signed == item

    check()
