"""Which seals are valid: every rule is broken once."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

import pytest

from contracts.governance.checking import Checking, Standing, StepFacts, Terms, Unchecked
from contracts.governance.gates import FINE
from contracts.governance.pay import PayLeaf
from contracts.governance.record import JobRecord
from contracts.governance.seals import derive_seal, verify_seal
from contracts.governance.rounds import applied_chunks
from contracts.terms.errors import Equivocation, InvalidSeal
from contracts.terms.history import Kept, Leaves, messages_root, unit_leaves_root
from contracts.terms.ids import ZERO_DIGEST, Address, Digest, StageIndex, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import (
    Assignment,
    AuditReport,
    AveragedChunk,
    AverageSet,
    GradCommit,
    Message,
    Notice,
    PartDigest,
    Seal,
    StepClose,
)
from contracts.terms.signatures import Signed
from tests.support.checked_history import make_auditors
from tests.support.history import (
    JobMaker,
    Member,
    make_digest,
    make_members,
    make_session,
    messages_of,
    under,
)

Items = list[Kept]
M = TypeVar("M", bound=Message)
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


def find(items: Sequence[Kept], kind: type[Message], number: int = 0) -> int:
    """Index of the message `number` of a kind."""
    found = [index for index, item in enumerate(items) if messages_of([item], kind)]
    return found[number]


def changed(items: Sequence[Kept], kind: type[Message], number: int = 0, **fields: object) -> Items:
    """`items` with fields of one message changed. Its old signature stays."""
    index, copy = find(items, kind, number), list(items)
    item = copy[index]
    assert isinstance(item, Signed)
    copy[index] = Signed(item.message.model_copy(update=fields), item.signature)
    return copy


def without(items: Sequence[Kept], kind: type[Message]) -> Items:
    """`items` without the first message of a kind."""
    index = find(items, kind)
    return [item for each, item in enumerate(items) if each != index]


def message(items: Sequence[Kept], kind: type[M], number: int = 0) -> M:
    """The message `number` of a kind."""
    return messages_of(items, kind)[number]


def part_of(record: JobRecord, items: Sequence[Kept]) -> str | None:
    """The part for which the step is refused; None: it is not."""
    try:
        derive_seal(record, under(items), last=False)
    except InvalidSeal as error:
        return str(error.data["part"])
    return None


def other_leaves(items: Items, change: Callable[[Leaves], Leaves]) -> Items:
    """`items` with the leaves of the first GradCommit changed, and it made to fit them."""
    commit = message(items, GradCommit)
    changed_items: Items = []
    for item in items:
        if isinstance(item, Leaves) and item.grad_commit == commit.digest():
            new = change(item)
            fields = {"units_root": unit_leaves_root(new.leaves), "num_units": len(new.leaves)}
            commit = commit.model_copy(update=fields)
            changed_items.append(Leaves(commit.digest(), new.leaves))
        else:
            changed_items.append(item)
    return changed(changed_items, GradCommit, 0, **fields)


@pytest.mark.parametrize("stages", [1, 2])
def test_verify_seal__honest_step__returns_what_the_coordinator_derived(stages: int) -> None:
    maker, record, items = made(stages)
    derived = derive_seal(record, under(items), last=False)
    seal = maker.coordinator.sign(derived.seal, maker.domain)

    assert verify_seal(record, seal, under(items)) == derived


def test_derive_seal__messages_in_another_order__is_the_same_and_checking_is_told_the_same() -> (
    None
):
    class Witness(Unchecked):
        def after(self, facts: StepFacts, terms: Terms) -> tuple[Checking, Standing]:
            told.append(facts)
            return super().after(facts, terms)

    told: list[StepFacts] = []
    _, record, items = made(2)
    watched = replace(record, checking=Witness())

    orders = (items, tuple(reversed(items)))
    first, second = (derive_seal(watched, under(order), last=False) for order in orders)

    assert first == second
    assert told[0] == told[1] and len(told[0].commits) > 1


def test_derive_seal__empty_step__pays_nothing_and_lets_time_pass() -> None:
    _, record, _ = made()

    derived = derive_seal(record, under(()), last=False)

    assert derived.seal.messages_root == messages_root([])
    assert derived.seal.gradient_norm == 0
    assert [leaf.earned for leaf in derived.pay] == [
        leaf.earned for leaf in derive_seal(record, under(()), last=True).pay
    ]


def test_derive_seal__norm__is_the_integer_root_of_the_sum() -> None:
    _, record, items = made()
    items = tuple(changed(items, AveragedChunk, 0, norm_squared=2 * 10**11))
    items = tuple(changed(items, AveragedChunk, 1, norm_squared=0))

    seal = derive_seal(record, under(items), last=False).seal

    assert seal.gradient_norm == 447_213_595  # sqrt(0.2) in 1e-9, rounded down


@pytest.mark.parametrize("field", [name for name in Seal.model_fields if name not in ("kind",)])
def test_verify_seal__one_field_differs__names_it(field: str) -> None:
    maker, record, items = made()
    seal = derive_seal(record, under(items), last=False).seal
    value = getattr(seal, field)
    other = {bool: value is False, int: value + 1 if isinstance(value, int) else 0}.get(
        type(value), b"x" * 32
    )
    forged = maker.coordinator.sign(seal.model_copy(update={field: other}), maker.domain)

    with pytest.raises(InvalidSeal) as caught:
        verify_seal(record, forged, under(items))

    # A seal of another job is refused by its signature; `last` changes what has vested.
    expected = {"job": "seal_signature", "last": "pay_root"}.get(field, field)
    assert caught.value.data["part"] == expected


def test_verify_seal__signed_by_another_wallet__is_refused() -> None:
    maker, record, items = made()
    seal = derive_seal(record, under(items), last=False).seal

    with pytest.raises(InvalidSeal) as caught:
        verify_seal(record, maker.poster.sign(seal, maker.domain), under(items))

    assert caught.value.data["part"] == "seal_signature"


def test_derive_seal__after_the_last__is_refused() -> None:
    _, record, items = made()
    ended = derive_seal(record, under(items), last=True).record

    assert part_of(ended, ()) == "last"


def test_derive_seal__two_values_under_one_name__is_equivocation() -> None:
    _, record, items = made()
    index = find(items, AveragedChunk)
    second = changed(items, AveragedChunk, 0, norm_squared=5)[index]

    with pytest.raises(Equivocation):
        derive_seal(record, under([*items, second]), last=False)


def test_derive_seal__message_twice__is_refused() -> None:
    _, record, items = made()

    assert part_of(record, [*items, items[0]]) == "messages"


def _by_another(items: Sequence[Kept]) -> Kept:
    """The first averaged chunk, as if another peer had summed it too."""
    chunk, other = message(items, AveragedChunk, 0), message(items, GradCommit, 1)
    peer = other.peer if other.peer != chunk.peer else message(items, GradCommit).peer
    return Signed(chunk.model_copy(update={"peer": peer}), b"")


CHANGED: dict[str, tuple[str, type[Message], dict[str, Any]]] = {
    "message of another step": ("step", StepClose, {"step": 9}),
    "revision 1 alone": ("step_close", StepClose, {"revision": 1}),
    "chunk of another set": ("averaged_chunk", AveragedChunk, {"average_set": OTHER}),
    "chunk that does not exist": ("averaged_chunk", AveragedChunk, {"chunk": 5}),
    "chunk too long": ("norm", AveragedChunk, {"norm_squared": 10**15}),
}
RECOMMITTED: dict[str, tuple[str, dict[str, Any]]] = {
    "other previous seal": ("grad_commit", {"previous_seal": OTHER}),
    "other step close": ("grad_commit", {"step_close": OTHER}),
    "units root": ("units_root", {"units_root": OTHER}),
    "too many units claimed": ("grad_commit", {"num_units": 9}),
    "too many samples": ("grad_commit", {"num_samples": 9}),
    "reports": ("reports", {"reports": (OTHER,)}),
    "another stage": ("membership", {"stage": StageIndex(1)}),
    "state differs": ("state_root", {"state_root": OTHER}),
}
RELEAFED: dict[str, tuple[str, dict[str, Any]]] = {
    "no loss on the last stage": ("leaves", {"loss": None}),
    "dx on the first stage": ("leaves", {"dx": OTHER}),
    "y on the last stage": ("leaves", {"y": OTHER}),
    "foreign unit": ("grad_commit", {"unit": ItemNumber(1)}),
}
BROKEN: dict[str, tuple[str, Callable[[Items], Items]]] = {
    "no average set": ("average_set", lambda i: without(i, AverageSet)),
    "no step close": ("step_close", lambda i: without(i, StepClose)),
    "no leaves": ("leaves", lambda i: [item for item in i if not isinstance(item, Leaves)]),
    "chunk missing": (
        "grad_commit",
        lambda i: _recommitted(i, parts=message(i, GradCommit).parts[:1]),
    ),
    "weight": ("average_set", lambda i: _reweighted(i, 5)),
    "member left out": ("average_set", lambda i: _left_out(i)),
    "chunk summed twice": ("averaged_chunk", lambda i: [*i, _by_another(i)]),
    "units out of order": (
        "leaves",
        lambda i: other_leaves(i, lambda each: Leaves(each.grad_commit, each.leaves[::-1])),
    ),
}


@pytest.mark.parametrize("name", [*CHANGED, *RECOMMITTED, *RELEAFED, *BROKEN])
def test_derive_seal__broken_rule__names_the_part(name: str) -> None:
    _, record, made_items = made()
    items = list(made_items)
    if name in CHANGED:
        part, kind, fields = CHANGED[name]
        broken = changed(items, kind, 0, **fields)
    elif name in RECOMMITTED:
        part, fields = RECOMMITTED[name]
        broken = _recommitted(items, **fields)
    elif name in RELEAFED:
        part, fields = RELEAFED[name]
        broken = other_leaves(items, lambda each: _releafed(each, **fields))
    else:
        part, break_it = BROKEN[name]
        broken = break_it(items)

    assert part_of(record, broken) == part


CLOSES: dict[str, Callable[[tuple[Assignment, ...]], tuple[Assignment, ...]]] = {
    "a unit twice": lambda a: (a[0], a[0].model_copy(update={"peer": a[1].peer}), a[2]),
    "a peer twice": lambda a: (a[0], a[0], a[2]),
    "units descend": lambda a: (a[0].model_copy(update={"units": a[0].units[::-1]}), *a[1:]),
    "beyond the batch": lambda a: (a[0].model_copy(update={"units": (6,)}), *a[1:]),
    "no such stage": lambda a: (a[0].model_copy(update={"stage": 3}), *a[1:]),
    "lacks units": lambda a: _halved(a),
}


@pytest.mark.parametrize("name", CLOSES)
def test_derive_seal__step_close_that_breaks_a_rule__is_refused(name: str) -> None:
    _, record, items = made()
    close = message(items, StepClose)
    assignments = CLOSES[name](close.assignments)

    assert part_of(record, changed(items, StepClose, 0, assignments=assignments)) == "step_close"


def test_derive_seal__stages_differ_in_their_units__is_refused() -> None:
    _, record, items = made(2)
    close = message(items, StepClose)

    fewer = changed(items, StepClose, 0, assignments=close.assignments[:-1])

    assert part_of(record, fewer) == "step_close"


def test_derive_seal__link_broken_between_stages__is_refused() -> None:
    _, record, items = made(2)
    first = message(items, GradCommit)

    broken = other_leaves(list(items), lambda each: _releafed(each, y=OTHER))

    assert part_of(record, _reaveraged(broken, first.digest())) == "links"


def test_derive_seal__report_while_nobody_is_drawn__is_refused() -> None:
    maker, record, items = made()
    report = AuditReport(
        job=maker.spec.job(),
        step=maker.next_step,
        stage=StageIndex(0),
        auditor=maker.members[0].session.peer,
        subject=OTHER,
        attempt=0,
        distances=(),
        projections=(),
        verdict="match",
    )

    assert part_of(record, [*items, maker.members[0].session.sign(report)]) == "reports"


NOTICES: dict[str, dict[str, object]] = {
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
    record = replace(record, outside=make_auditors(["out"]))
    left = derive_seal(record, under([maker.session.sign(leaving(maker))]), last=False).record
    peer = maker.members[0].session.peer if who == "left" else make_session(who).peer
    fields = {"what": what, "peer": peer, "step": left.step + 1, "number": left.next_notice}
    notice = leaving(maker).model_copy(update=fields)

    assert part_of(left, [maker.session.sign(notice)]) == part


def test_derive_seal__member_left__is_paid_for_this_step_and_refused_in_the_next() -> None:
    maker, record, items = made()
    derived = derive_seal(record, under([*items, maker.session.sign(leaving(maker))]), last=False)

    assert len(derived.pay) == 3
    assert maker.members[0].session.peer not in derived.record.members


def test_derive_seal__no_update__pays_what_fits_the_step_close() -> None:
    maker, record, _ = made()

    with_update = derive_seal(record, under(maker.step_items()), last=False)
    derived = derive_seal(record, under(maker.step_items(update=False)), last=False)

    assert derived.seal.gradient_norm == 0
    assert derived.pay == with_update.pay


@pytest.mark.parametrize("stages", [1, 2])
def test_derive_seal__chunk_never_summed__average_set_lapses_and_work_is_paid(
    stages: int,
) -> None:
    maker, record, items = made(stages)

    with_update = derive_seal(record, under(items), last=False)

    lapsed = under(without(items, AveragedChunk))
    derived = derive_seal(record, lapsed, last=False)

    assert derived.seal.gradient_norm == 0
    assert derived.seal.earned == with_update.seal.earned > maker.seals[-1].seal.earned
    assert derived.record.gates == record.gates
    assert applied_chunks(record.spec, [each.message for each in lapsed.messages]) == ()


def test_verify_seal__average_set_lapsed__members_accept_it_and_the_next_step_goes_on() -> None:
    maker = JobMaker()
    maker.seal_step()

    maker.seal(without(maker.step_items(), AveragedChunk))
    maker.seal_step(last=True)

    assert [each.seal.step for each in maker.seals] == [1, 2, 3]


def test_derive_seal__no_update_and_missing_data__leaves_that_peer_step_unpaid() -> None:
    maker, record, _ = made()
    items = maker.step_items(update=False)
    [commit] = [
        c for c in messages_of(items, GradCommit) if c.peer == maker.members[0].session.peer
    ]

    derived = derive_seal(record, under([*items, missing(maker, commit.digest())]), last=False)

    grown = growth(maker, derived.pay)
    unpaid = [account for account, amount in grown.items() if amount == 0]
    assert unpaid == [maker.members[0].wallet.account]


@pytest.mark.parametrize("of_another", [False, True])
def test_derive_seal__no_update_and_data_of_other_work_missing__everybody_is_paid(
    of_another: bool,
) -> None:
    maker, record, _ = made()
    items = maker.step_items(update=False)
    others = [c for c in messages_of(items, GradCommit) if c.peer != maker.members[0].session.peer]
    evidence = others[0].digest() if of_another else make_digest("of an older step")

    derived = derive_seal(record, under([*items, missing(maker, evidence)]), last=False)

    assert all(amount > 0 for amount in growth(maker, derived.pay).values())


def test_derive_seal__unit_redone_in_a_second_revision__is_paid_to_who_redid_it() -> None:
    maker, record, _ = made()
    items = redone(maker)

    derived = derive_seal(record, under(items), last=False)

    grown = growth(maker, derived.pay)
    gone, redoer = maker.members[0], maker.members[1]
    assert grown[gone.wallet.account] == 0
    assert grown[redoer.wallet.account] > 1.9 * grown[maker.members[2].wallet.account]


def test_derive_seal__later_revision_adds_units__is_refused() -> None:
    maker, record, items = made()
    close = message(items, StepClose)
    first = maker.session.sign(close.model_copy(update={"assignments": _halved(close.assignments)}))
    second = changed(items, StepClose, 0, revision=1)

    assert part_of(record, [first, *second]) == "step_close"


def test_derive_seal__unit_struck_from_all_stages__is_not_paid_and_the_rest_is() -> None:
    maker, record, _ = made(2)

    derived = derive_seal(record, under(with_unit_struck(maker, ItemNumber(5))), last=False)

    grown = sum(derived.record.pay.earned.values()) - sum(record.pay.earned.values())
    assert grown == 5 * sum(maker.spec.item_flops)


def test_derive_seal__unit_struck_from_one_stage_only__is_refused() -> None:
    maker, record, _ = made(2)
    items = with_unit_struck(maker, ItemNumber(5))
    first, second = message(items, StepClose), message(items, StepClose, 1)
    mixed = tuple(
        old if old.stage == 0 else new
        for old, new in zip(first.assignments, second.assignments, strict=True)
    )

    assert part_of(record, changed(items, StepClose, 1, assignments=mixed)) == "step_close"


class _LongMaker(JobMaker):
    """The first member's gradient is ten times as long as the others'."""

    def parts(self, member: Member, step: StepNumber) -> tuple[PartDigest, ...]:
        usual = super().parts(member, step)
        factor = 100 if member is self.members[0] else 1
        return tuple(
            part.model_copy(update={"norm_squared": part.norm_squared * factor}) for part in usual
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
    average = message(items, AverageSet)
    names = {commit.digest(): commit.peer for commit in messages_of(items, GradCommit)}

    derived = derive_seal(maker.record, under(items), last=False)

    weights = {names[each.grad_commit]: each.weight for each in average.members}
    found = [weights[member.session.peer] for member in maker.members]
    assert found == [8 * FINE * 3 // 10, 8 * FINE, 8 * FINE]
    (remembered,) = derived.record.gates.steps
    assert sorted(owner for owner in remembered[StageIndex(0)]) == sorted(
        member.wallet.account for member in maker.members
    )


def test_derive_seal__weight_before_the_norm_gate__is_refused() -> None:
    maker = after_25_steps()
    items = maker.step_items()
    average = message(items, AverageSet)

    ungated = tuple(each.model_copy(update={"weight": 8}) for each in average.members)

    assert part_of(maker.record, _with_members(items, ungated)) == "average_set"


def with_unit_struck(maker: JobMaker, unit: ItemNumber) -> Items:
    """A step whose second revision lacks one unit, in all stages, before anybody has committed."""
    first = maker.close()
    fewer = tuple(
        each.model_copy(update={"units": tuple(u for u in each.units if u != unit)})
        for each in first.assignments
    )
    second = first.model_copy(update={"revision": 1, "assignments": fewer})
    pairs = [(member, *maker.commit(member, second)) for member in maker.members]
    commits = [commit for _, commit, _ in pairs]
    average = maker.average(second, commits)
    items: Items = [maker.session.sign(first), maker.session.sign(second)]
    for member, commit, leaves in pairs:
        items += [member.session.sign(commit), Leaves(commit.digest(), leaves)]
    return [*items, maker.session.sign(average), *maker.chunks(average, commits)]


def redone(maker: JobMaker) -> Items:
    """A step in which the first member is lost after its GradCommit; the second redoes it."""
    gone, redoer, _ = maker.members
    items = [item for item in maker.step_items() if not _is_sum(item)]
    first = message(items, StepClose)
    moved = {each.peer: each.units for each in first.assignments}
    units = moved.pop(gone.session.peer)
    both = tuple(sorted((*units, *moved[redoer.session.peer])))
    moved[redoer.session.peer] = both
    assignments = tuple(
        Assignment(stage=StageIndex(0), peer=peer, units=units) for peer, units in moved.items()
    )
    second = first.model_copy(update={"revision": 1, "assignments": assignments})
    commit, leaves = maker.commit(redoer, second, units=units, round=1)
    kept = (each for each in messages_of(items, GradCommit) if each.peer != gone.session.peer)
    commits = [*kept, commit]
    average = maker.average(second, commits)
    return [
        *items,
        maker.session.sign(second),
        redoer.session.sign(commit),
        Leaves(commit.digest(), leaves),
        maker.session.sign(average),
        *maker.chunks(average, commits),
    ]


def growth(maker: JobMaker, pay: Sequence[PayLeaf]) -> dict[Address, int]:
    """What each account earned since the first step."""
    before = {leaf.account: leaf.earned for leaf in maker.seals[0].pay}
    return {leaf.account: leaf.earned - before[leaf.account] for leaf in pay}


def leaving(maker: JobMaker) -> Notice:
    """The notice that the first member leaves."""
    member = maker.members[0]
    return Notice(
        job=maker.spec.job(),
        step=maker.next_step,
        number=len(maker.members),
        what="leave",
        peer=member.session.peer,
        stage=member.stage,
        address="",
        evidence=ZERO_DIGEST,
    )


def missing(maker: JobMaker, evidence: Digest) -> Signed[Notice]:
    """The notice that data of the first member's work are missing."""
    about = {"what": "missing_data", "evidence": evidence}
    return maker.session.sign(leaving(maker).model_copy(update=about))


def _halved(assignments: tuple[Assignment, ...]) -> tuple[Assignment, ...]:
    """Only the first unit of each."""
    return tuple(each.model_copy(update={"units": each.units[:1]}) for each in assignments)


def _is_sum(item: Kept) -> bool:
    return isinstance(item, Signed) and isinstance(item.message, AverageSet | AveragedChunk)


def _recommitted(items: Items, **fields: object) -> Items:
    """The first GradCommit changed, its leaves and the AverageSet made to fit."""
    old = message(items, GradCommit).digest()
    new = changed(items, GradCommit, 0, **fields)
    name = message(new, GradCommit).digest()
    moved: Items = [
        Leaves(name, item.leaves) if isinstance(item, Leaves) and item.grad_commit == old else item
        for item in new
    ]
    return _reaveraged(moved, old)


def _reaveraged(items: Items, old: Digest) -> Items:
    """The AverageSet names the first GradCommit as it is now, the chunks name the AverageSet."""
    average = message(items, AverageSet)
    first = messages_of(items, GradCommit)[0].digest()
    members = tuple(
        sorted(
            (
                each.model_copy(update={"grad_commit": first}) if each.grad_commit == old else each
                for each in average.members
            ),
            key=lambda each: each.grad_commit,
        )
    )
    return _with_members(items, members)


def _with_members(items: Items, members: object) -> Items:
    items = changed(items, AverageSet, 0, members=members)
    name = message(items, AverageSet).digest()
    for number in range(sum(1 for item in items if _is_sum(item)) - 1):
        items = changed(items, AveragedChunk, number, average_set=name)
    return items


def _reweighted(items: Items, weight: int) -> Items:
    average = message(items, AverageSet)
    first, *rest = average.members
    return _with_members(items, (first.model_copy(update={"weight": weight}), *rest))


def _left_out(items: Items) -> Items:
    average = message(items, AverageSet)
    return _with_members(items, average.members[1:])


def _releafed(leaves: Leaves, **fields: object) -> Leaves:
    first, *rest = leaves.leaves
    return Leaves(leaves.grad_commit, (first.model_copy(update=fields), *rest))
