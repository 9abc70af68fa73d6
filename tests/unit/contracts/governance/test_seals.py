"""Which seals are valid: every rule is broken once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from contracts.governance.checking import Checking, RoundFacts, Standing, Terms, Unchecked
from contracts.governance.gates import FINE
from contracts.governance.record import JobRecord
from contracts.governance.seals import derive_seal, verify_seal
from contracts.terms.errors import Equivocation, InvalidSeal
from contracts.terms.history import Kept, Leaves
from contracts.terms.ids import Address, StageIndex, StepNumber
from contracts.terms.messages import Message, Notice, Seal
from contracts.terms.signatures import Signed
from contracts.terms.work import Leaf, Output, RoundClosed, WorkClaim
from tests.support.history import (
    JobMaker,
    Member,
    claims_in,
    make_digest,
    make_members,
    make_session,
    messages_of,
    outside_auditors,
    report_claim,
    under,
)

Items = list[Kept]
Fields = dict[str, Any]
OTHER = make_digest("x")


@pytest.fixture(scope="module", autouse=True)
def _made() -> None:
    """Make both jobs before any test is timed."""
    made(1), made(2)


@cache
def made(stages: int = 1) -> tuple[JobMaker, JobRecord, tuple[Kept, ...]]:
    """A job after one step, and what is said in its second step, in order."""
    maker = JobMaker(members=make_members("abcd"[: stages + 2], stages=stages))
    maker.seal_step()
    return maker, maker.record, tuple(maker.step_items())


def a_round(
    maker: JobMaker,
    claim: Callable[[JobMaker, WorkClaim], Fields] | Fields | None = None,
    leaves: Callable[[tuple[Leaf, ...]], tuple[Leaf, ...]] | None = None,
    closed: Callable[[RoundClosed], Fields] | Fields | None = None,
    bucket: Callable[[JobMaker, WorkClaim], Fields] | Fields | None = None,
) -> Items:
    """A step in which the first claim, its leaves, RoundClosed or the first bucket is changed."""
    items: Items = []
    claims, honest = list[WorkClaim](), list[WorkClaim]()
    for number, member in enumerate(maker.members):
        said, own = maker.claim(member)
        honest.append(said)
        if number == 0:
            if leaves is not None:
                own = leaves(own)
                said, _ = maker.claim(member, leaf_list=own)
            fields = claim(maker, said) if callable(claim) else claim
            said = said.model_copy(update=fields or {})
        claims.append(said)
        items += [member.session.sign(said), Leaves(said.digest(), own)]
    merged = maker.closed(claims)
    merged = merged.model_copy(update=(closed(merged) if callable(closed) else closed) or {})
    reduced = [signed.message for signed in maker.bucket_claims(merged, honest)]
    fields = bucket(maker, reduced[0]) if callable(bucket) else bucket
    reduced[0] = reduced[0].model_copy(update=fields or {})
    return [*items, maker.session.sign(merged), *(Signed(each, b"") for each in reduced)]


def part_of(record: JobRecord, items: Sequence[Kept]) -> str | None:
    """The part for which the step is refused; None: it is not."""
    try:
        derive_seal(record, under(items), last=False)
    except InvalidSeal as error:
        return str(error.data["part"])
    return None


def without(items: Sequence[Kept], message: Message) -> Items:
    """`items` without one message."""
    return [item for item in items if not (isinstance(item, Signed) and item.message == message)]


@pytest.mark.parametrize("stages", [1, 2])
def test_verify_seal__honest_step__returns_what_the_coordinator_derived(stages: int) -> None:
    maker, record, items = made(stages)
    derived = derive_seal(record, under(items), last=False)
    seal = maker.coordinator.sign(derived.seal, maker.domain)

    assert verify_seal(record, seal, under(items)) == derived
    assert derived.names == {each.digest() for each in messages_of(items, Message)}


def test_derive_seal__messages_in_another_order__is_the_same_and_checking_is_told_the_same() -> (
    None
):
    class Witness(Unchecked):
        def after(self, facts: RoundFacts, terms: Terms) -> tuple[Checking, Standing]:
            told.append(facts)
            return super().after(facts, terms)

    told: list[RoundFacts] = []
    _, record, items = made(2)
    watched = replace(record, checking=Witness())

    orders = (items, tuple(reversed(items)))
    first, second = (derive_seal(watched, under(order), last=False) for order in orders)

    assert first == second
    assert told[0] == told[1] and len(told[0].claims) > 1


def test_derive_seal__norm__is_the_integer_root_of_the_sum() -> None:
    maker, record, _ = made()

    items = a_round(maker, bucket={"outputs": (_output(2 * 10**11),)})
    first, second = claims_in(items, "bucket")
    shorter = second.model_copy(update={"outputs": (_output(0, bucket=1),)})
    changed = [*without(items, second), maker.session.sign(shorter)]

    seal = derive_seal(record, under(changed), last=False).seal
    assert seal.gradient_norm == 447_213_595  # sqrt(0.2) in 1e-9, rounded down
    assert first.outputs[0].norm_squared == 2 * 10**11


@pytest.mark.parametrize("field", [name for name in Seal.model_fields if name not in ("kind",)])
def test_verify_seal__one_field_differs__names_it(field: str) -> None:
    maker, record, items = made()
    seal = derive_seal(record, under(items), last=False).seal
    value = getattr(seal, field)
    others: dict[type, object] = {bool: value is False, tuple: ((0, 1),)}
    other = others.get(type(value), value + 1 if isinstance(value, int) else b"x" * 32)
    forged = maker.coordinator.sign(seal.model_copy(update={field: other}), maker.domain)

    with pytest.raises(InvalidSeal) as caught:
        verify_seal(record, forged, under(items))

    # A seal of another job is refused by its signature; `last` changes what has vested.
    expected = {"job": "seal_signature", "last": "pay_root"}.get(field, field)
    assert caught.value.data["part"] == expected


def test_derive_seal__after_the_last__is_refused() -> None:
    _, record, items = made()
    ended = derive_seal(record, under(items), last=True).record

    assert part_of(ended, ()) == "last"


def test_derive_seal__two_values_under_one_name__is_equivocation() -> None:
    maker, record, items = made()
    [closed] = messages_of(items, RoundClosed)
    other = closed.model_copy(update={"opened_at": 5})

    with pytest.raises(Equivocation):
        derive_seal(record, under([*items, maker.session.sign(other)]), last=False)


def test_derive_seal__message_twice__is_refused() -> None:
    _, record, items = made()

    assert part_of(record, [*items, items[0]]) == "messages"


def _output(norm_squared: int, bucket: int = 0) -> Output:
    return Output.from_value(
        {"bucket": bucket, "digest": make_digest("o", bucket), "norm_squared": norm_squared}
    )


def _of_second(maker: JobMaker, claim: WorkClaim) -> Fields:
    """The items of the second member."""
    other, _ = maker.claim(maker.members[1])
    return {"items": other.items}


CLAIMS: dict[str, tuple[str, Callable[[JobMaker, WorkClaim], Fields] | Fields]] = {
    "other previous seal": ("claim", {"previous": OTHER}),
    "a later round": ("step", {"round": StepNumber(3)}),
    "a round before the update": ("claim", {"round": StepNumber(1)}),
    "a bucket missing": ("claim", lambda _, claim: {"outputs": claim.outputs[:1]}),
    "no such group": ("claim", {"group": StageIndex(1)}),
    "other leaves": ("leaves", {"leaves": OTHER}),
    "other items than its leaves": ("leaves", {"items": ((20, 22),)}),
    "report that nobody gave": ("reports", {"reports": (OTHER,)}),
    "another base": ("bases", {"base": OTHER}),
}
LEAVES: dict[str, tuple[str, Callable[[tuple[Leaf, ...]], tuple[Leaf, ...]]]] = {
    "out of order": ("leaves", lambda leaves: leaves[::-1]),
    "of another state": ("leaves", lambda leaves: _releafed(leaves, base_round=1)),
    "given, and nobody says so": ("given", lambda leaves: _releafed(leaves, given=True)),
}
CLOSED: dict[str, tuple[str, Callable[[RoundClosed], Fields] | Fields]] = {
    "of another round": ("step", {"round": StepNumber(9)}),
    "too many bases": ("bases", lambda closed: {"bases": closed.bases * 2}),
    "a reducer missing": ("reducers", lambda closed: {"reducers": closed.reducers[:1]}),
    "a reducer from nowhere": (
        "reducers",
        lambda closed: {"reducers": (make_session("x").peer, *closed.reducers[1:])},
    ),
    "a claim that is not there": (
        "round_closed",
        lambda closed: {"claims": tuple(sorted((*closed.claims, (OTHER, 1))))},
    ),
    "weight": (
        "weights",
        lambda closed: {"claims": ((closed.claims[0][0], 5), *closed.claims[1:])},
    ),
}
BUCKETS: dict[str, tuple[str, Callable[[JobMaker, WorkClaim], Fields] | Fields]] = {
    "extends another seal": ("bucket", {"previous": OTHER}),
    "too long": ("norm", {"outputs": (_output(10**15),)}),
    "of a peer that is no member": ("membership", {"peer": make_session("x").peer}),
    "of another round": ("step", {"round": StepNumber(1)}),
}


TABLES: dict[str, Mapping[str, tuple[str, Any]]] = {
    "claim": CLAIMS,
    "leaves": LEAVES,
    "closed": CLOSED,
    "bucket": BUCKETS,
}


@pytest.mark.parametrize("name", [*CLAIMS, *LEAVES, *CLOSED, *BUCKETS])
def test_derive_seal__broken_rule__names_the_part(name: str) -> None:
    maker, record, _ = made()
    changes: dict[str, Any] = {}
    part = ""
    for argument, table in TABLES.items():
        if name in table:
            part, changes[argument] = table[name]

    assert part_of(record, a_round(maker, **changes)) == part


def test_derive_seal__item_that_is_sealed_claimed_twice_or_far_ahead__is_refused() -> None:
    maker, record, _ = made()
    for items in ((0, 1), (6 + 2**16, 7 + 2**16)):
        numbers = maker.record.cursor.issue(1)
        _, leaves = maker.claim(maker.members[0], numbers)
        moved = tuple(leaf.model_copy(update={"item": items[0]}) for leaf in leaves)

        changed = a_round(maker, claim={"items": (items,)}, leaves=lambda _, own=moved: own)  # type: ignore[misc]  # bound now

        assert part_of(record, changed) == "items"
    twice = a_round(
        maker,
        claim=_of_second,
        leaves=lambda _: maker.claim(maker.members[1])[1],
    )
    assert part_of(record, twice) == "items"


def test_derive_seal__groups_with_different_items__is_refused() -> None:
    maker, record, items = made(2)
    [closed] = messages_of(items, RoundClosed)
    first = claims_in(items, "work")[0]
    rest = [each for each in claims_in(items, "work") if each != first]
    fewer = maker.closed(rest)

    buckets = maker.bucket_claims(fewer, [first, *rest])

    assert (
        part_of(record, [*without(items, closed), maker.session.sign(fewer), *buckets]) == "items"
    )


def test_derive_seal__neighbours_name_one_tensor_by_two_digests__is_refused() -> None:
    maker, record, _ = made(2)

    def other_y(leaves: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
        tensors = tuple(
            (name, OTHER if name.startswith("y/") else digest) for name, digest in leaves[0].tensors
        )
        return _releafed(leaves, tensors=tensors)

    assert part_of(record, a_round(maker, leaves=other_y)) == "tensors"


def test_derive_seal__leaf_that_round_closed_says_is_given__is_taken() -> None:
    maker, record, _ = made()
    given: Fields = {"given": ((StageIndex(0), ((6, 7),)),)}

    items = a_round(maker, leaves=lambda own: _releafed(own, given=True), closed=given)
    other = a_round(
        maker,
        leaves=lambda own: _releafed(own, given=True),
        closed={"given": ((StageIndex(0), ((7, 9),)),)},
    )

    assert part_of(record, items) is None
    assert part_of(record, other) == "given"


def test_derive_seal__claim_without_its_leaves__is_refused_and_one_that_is_not_merged_is_not() -> (
    None
):
    maker, record, items = made()
    late, _ = maker.claim(maker.members[0], seq=1)

    bare = [item for item in items if not isinstance(item, Leaves)]

    assert part_of(record, bare) == "leaves"
    assert part_of(record, [*items, maker.members[0].session.sign(late)]) is None


def test_derive_seal__report__is_sealed_with_its_leaf_only_and_refused_where_nobody_is_drawn() -> (
    None
):
    maker, record, items = made()
    member = maker.members[0]
    report, leaf = report_claim(
        maker.spec.job(), member.session.peer, "match",
        round=StepNumber(1), group=member.stage, subject=OTHER,
    )  # fmt: skip
    signed = member.session.sign(report)
    ahead = member.session.sign(report.model_copy(update={"round": maker.next_step}))

    assert part_of(record, [*items, signed]) == "leaves"
    assert part_of(record, [*items, ahead]) == "step"
    assert part_of(record, [*items, signed, Leaves(report.digest(), (leaf,))]) == "reports"


NOTICES: dict[str, Fields] = {
    "number": {"number": 9},
    "evidence": {"what": "join", "evidence": OTHER},
    "member joins again": {"what": "join"},
    "leaves another stage": {"stage": StageIndex(1)},
}


@pytest.mark.parametrize("name", NOTICES)
def test_derive_seal__notice_that_breaks_a_rule__is_refused(name: str) -> None:
    maker, record, items = made()
    notice = leaving(maker).model_copy(update=NOTICES[name])

    assert part_of(record, [*items, maker.session.sign(notice)]) == "notice"


@pytest.mark.parametrize(
    ("who", "what", "part"),
    [
        ("left", "missed_report", None),
        ("left", "missing_data", None),
        ("left", "suspension", "notice"),
        ("out", "missed_report", None),
        ("out", "missing_data", "notice"),
        ("out", "suspension", "notice"),
        ("stranger", "missed_report", "notice"),
    ],
)
def test_derive_seal__notice_of_a_member_that_left_or_of_an_auditor__says_only_what_it_owes(
    who: str, what: str, part: str | None
) -> None:
    maker, record, _ = made()
    record = replace(record, outside=outside_auditors(["out"]))
    left = derive_seal(record, under([maker.session.sign(leaving(maker))]), last=False).record
    peer = maker.members[0].session.peer if who == "left" else make_session(who).peer
    fields = {"what": what, "peer": peer, "step": left.step + 1, "number": left.next_notice}
    notice = leaving(maker).model_copy(update=fields)

    assert part_of(left, [maker.session.sign(notice)]) == part


# ------------------------------------------------------------------------- void rounds and updates


def test_derive_seal__report_named_by_a_claim_of_a_void_round__was_sealed_by_that() -> None:
    maker, record, _ = made()
    known = replace(record, reported=frozenset({OTHER}))

    items = a_round(maker, claim={"reports": (OTHER,)})

    assert part_of(record, items) == "reports"
    # Nobody is drawn here, so even a report that is known may not be named.
    assert part_of(known, items) == "reports"
    derived = derive_seal(replace(known, checking=_Taking()), under(items), last=False)
    assert derived.record.reported == frozenset()


class _Taking(Unchecked):
    """Checking that takes whatever a seal covers."""

    def after(self, facts: RoundFacts, terms: Terms) -> tuple[Checking, Standing]:
        return self, Standing(settled_to=facts.step)


def test_derive_seal__bucket_that_another_peer_reduced__costs_the_dealt_one_its_pay() -> None:
    maker, record, items = made()
    dealt, claims = claims_in(items, "bucket")[0], claims_in(items, "work")
    other = next(each for each in maker.members if each.session.peer != dealt.peer)
    taken_over = other.session.sign(dealt.model_copy(update={"peer": other.session.peer}))
    names = {claim.peer: claim.digest() for claim in claims}

    replaced = derive_seal(record, under([*without(items, dealt), taken_over]), last=False)
    both = derive_seal(record, under([*items, taken_over]), last=False)

    assert replaced.paid == set(names.values()) - {names[dealt.peer]}
    assert growth(maker, replaced.record)[dealt.peer] == 0
    assert taken_over.message.digest() not in both.names, "the dealt reducer's claim comes first"
    assert both.paid == set(names.values())


class _LongMaker(JobMaker):
    """The first member's gradient is ten times as long as the others'."""

    def outputs(self, member: Member, step: StepNumber) -> tuple[Output, ...]:
        usual = super().outputs(member, step)
        factor = 100 if member is self.members[0] else 1
        return tuple(
            each.model_copy(update={"norm_squared": each.norm_squared * factor}) for each in usual
        )


def after_25_steps() -> JobMaker:
    maker = _LongMaker()
    record = replace(
        maker.record,
        pay=replace(maker.record.pay, step=StepNumber(25)),
        members={member.session.peer: member.stage for member in maker.members},
    )
    maker.history = replace(maker.history, record=record)
    return maker


def test_derive_seal__gradient_ten_times_too_long__has_the_weight_of_the_norm_gate() -> None:
    maker = after_25_steps()
    items = maker.step_items()
    [closed] = messages_of(items, RoundClosed)
    weights = dict(closed.claims)

    derived = derive_seal(maker.record, under(items), last=False)

    found = {claim.peer: weights[claim.digest()] for claim in claims_in(items, "work")}
    ordered = [found[member.session.peer] for member in maker.members]
    assert ordered == [8 * FINE * 3 // 10, 8 * FINE, 8 * FINE]
    (remembered,) = derived.record.gates.steps
    owners: list[Address] = sorted(remembered[StageIndex(0)])
    assert owners == sorted(member.wallet.account for member in maker.members)


def test_derive_seal__weight_before_the_norm_gate__is_refused() -> None:
    maker = after_25_steps()

    ungated = a_round(
        maker, closed=lambda closed: {"claims": tuple((name, 8) for name, _ in closed.claims)}
    )

    assert part_of(maker.record, ungated) == "weights"


def growth(maker: JobMaker, record: JobRecord) -> dict[object, int]:
    """FLOPs that each peer has been paid for since the first step."""
    before = maker.seals[0].record.pay.earned
    return {peer: flops - before[peer] for peer, flops in record.pay.earned.items()}


def leaving(maker: JobMaker) -> Notice:
    """The notice that the first member leaves."""
    return maker.notice("leave", maker.members[0])


def _releafed(leaves: tuple[Leaf, ...], **fields: object) -> tuple[Leaf, ...]:
    first, *rest = leaves
    return (first.model_copy(update=fields), *rest)
