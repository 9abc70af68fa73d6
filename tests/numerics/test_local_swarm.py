"""A job of local steps from its first to its last seal, over real messages, in memory."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.terms.ids import Digest, PeerId, SessionKey, StepNumber
from contracts.terms.items import ItemNumber
from contracts.terms.messages import LocalSpec
from contracts.terms.work import Leaf
from tallystick.gym.around import Around, Computing
from tallystick.gym.registry import MODULE, behaviour_of
from tests.numerics.loop import rows_of, synthetic_corpus
from tests.numerics.plain_local import Plain
from tests.support.lying import Answer, AnsweringTransport
from tests.support.stage_swarm import stage_papers, stage_swarm
from tests.support.swarm_job import COORDINATOR, Line, MemorySwarm, patient_rules
from training.config import TrainConfig
from training.coordinator import items as coordinator_items
from training.coordinator.router import Router
from training.recipes import micro
from training.rounds.state import RoundState, items_ahead
from training.strategies.port import Direction, RoundNumber, Source
from training.transport.calls import GET_BYTES
from training.transport.port import Handler
from training.worker import items

PEERS = ("ann", "bob", "cem")
ROUNDS, INNER_STEPS, ROWS = 4, 3, 2
ITEMS = ROUNDS * len(PEERS)
CORPUS = synthetic_corpus()
LOCAL = LocalSpec(
    inner_steps=INNER_STEPS,
    segments=1,
    rewarm_steps=2,
    outer_rate=900_000,
    outer_momentum=500_000,
    round_time=60_000,
    quorum=2,
)


def config_of() -> TrainConfig:
    """Three peers of one item of three steps of two rows."""
    base = micro(num_steps=ROUNDS)
    steps = ROUNDS * INNER_STEPS
    return replace(
        base,
        optimizer=replace(base.optimizer, total_steps=steps, warmup_steps=2),
        data=replace(base.data, units_per_step=len(PEERS), rows_per_unit=INNER_STEPS * ROWS),
    )


def swarm_of(folder: Path, *, local: LocalSpec = LOCAL, **changed: Any) -> MemorySwarm:
    """Of these peers; `changed` as in `make_papers`."""
    config, manifest = config_of(), CORPUS.manifest.digest()
    papers = stage_papers(
        config, manifest, *PEERS, strategy="local", local=local, validate_every=2, **changed
    )
    return stage_swarm(folder, papers, CORPUS)


def finished(swarm: MemorySwarm) -> MemorySwarm:
    """From its first to its last seal."""
    torch.set_num_threads(1)
    asyncio.run(swarm.run())
    return swarm


def plain_root(swarm: MemorySwarm) -> Digest:
    """Of the weights that a plain loop comes to."""
    spec, config = swarm.papers.spec.message, config_of()
    return Plain(spec, rows_of(config, CORPUS), swarm.merged(), ahead=swarm.ahead()).root()


def weights_roots(swarm: MemorySwarm) -> set[Digest]:
    """Of the peers, after the last seal."""
    applied = [line for line in swarm.lines("seal_applied") if "weights_root" in line]
    last = max(line["step"] for line in applied)
    return {line["weights_root"] for line in applied if line["step"] == last}


def sealed_items(swarm: MemorySwarm) -> list[ItemNumber]:
    """Of all rounds, in the order of the seals."""
    merged = swarm.merged().values()
    return [item for claims in merged for claim in claims for item in claim.numbers]


@pytest.mark.parametrize(
    ("codec", "moments"),
    [
        ("none", "restart"),
        ("bfloat16", "restart"),
        ("seeded8", "restart"),
        ("seeded4", "restart"),
        ("none", "mean"),
        ("seeded4", "mean"),
    ],
)
def test_local__three_peers__has_the_weights_of_a_plain_loop(
    tmp_path: Path, codec: str, moments: str
) -> None:
    local = LOCAL.model_copy(update={"moments": moments})
    rules = patient_rules(gradient_codec=codec)
    swarm = finished(swarm_of(tmp_path, local=local, rules=rules))

    assert swarm.refused == {} and swarm.seals()[-1].last
    assert weights_roots(swarm) == {plain_root(swarm)}
    assert sorted(sealed_items(swarm)) == [*range(ITEMS)]
    losses, validation = swarm.losses(), swarm.validation()
    assert len(losses) == ROUNDS and losses[ROUNDS] < losses[1] - 300_000
    assert sorted(validation) == [2, ROUNDS] and validation[ROUNDS] < validation[2]


@pytest.mark.parametrize("for_good", [True, False])
def test_local__a_peer_dies_in_a_round__others_go_on_and_its_items_come_later(
    tmp_path: Path, for_good: bool
) -> None:
    local = LOCAL.model_copy(update={"round_time": 3_000})
    rules = patient_rules(lease_grace=4_000)
    swarm = swarm_of(tmp_path, local=local, rules=rules)
    swarm.deadly = {("bob", "item_done", 2): "bob"}
    swarm.for_good = frozenset({"bob"} if for_good else ())

    finished(swarm)

    assert swarm.refused == {} and swarm.seals()[-1].last
    assert weights_roots(swarm) == {plain_root(swarm)}
    assert sorted(sealed_items(swarm)) == [*range(ITEMS)]


class _Slow:
    """A peer's handler that gives no shards until a line is told."""

    def __init__(self, until: asyncio.Event, handler: Handler) -> None:
        self._until, self._handler = until, handler

    async def handle(
        self, caller: SessionKey, method: str, header: bytes, tensors: tuple[memoryview, ...]
    ) -> Answer:
        if method == GET_BYTES.name:
            await self._until.wait()
        return await self._handler.handle(caller, method, header, tensors)


def slow_to_deliver(
    swarm: MemorySwarm, name: str, round: int, *, seconds: float | None = None
) -> None:
    """Of `round` a peer gives nothing before its seal is stored, or some seconds have passed."""
    until = asyncio.Event()
    until.set()

    def watch(who: str, line: Line) -> None:
        if (who, line["event"], line.get("step")) == (name, "claim_stored", round):
            until.clear()
            if seconds is not None:
                asyncio.get_running_loop().call_later(seconds, until.set)
        elif (who, line["event"], line.get("step")) == (name, "seal_stored", round):
            until.set()

    swarm.watch = watch
    swarm.wrap = lambda who, transport: (
        AnsweringTransport(transport, partial(_Slow, until)) if who == name else transport
    )


@pytest.mark.parametrize("moments", ["restart", "mean"])
def test_local__a_peer_delivers_late__its_claim_is_merged_a_round_later(
    tmp_path: Path, moments: str
) -> None:
    local = LOCAL.model_copy(update={"moments": moments})
    rules = patient_rules(exchange_timeout=3_000, gradient_codec="seeded4")
    swarm = swarm_of(tmp_path, local=local, rules=rules)
    slow_to_deliver(swarm, "bob", 2)

    finished(swarm)

    bob, merged = swarm.session_of("bob").peer, swarm.merged()
    [when] = [
        step
        for step, claims in merged.items()
        if any((claim.peer, claim.round) == (bob, 2) for claim in claims)
    ]
    assert when == 3 and swarm.refused == {} and swarm.seals()[-1].last
    assert weights_roots(swarm) == {plain_root(swarm)}
    assert sorted(sealed_items(swarm)) == [*range(ITEMS)]


def test_local__the_coordinator_dies_while_claims_come_in__nothing_differs(tmp_path: Path) -> None:
    swarm = swarm_of(tmp_path, rules=patient_rules())
    swarm.deadly = {("cem", "claim_stored", 2): COORDINATOR}

    finished(swarm)

    assert swarm.restarts == 1
    assert weights_roots(swarm) == {plain_root(swarm)}
    assert sorted(sealed_items(swarm)) == [*range(ITEMS)]


@pytest.mark.parametrize(
    ("text", "codec"),
    [
        ("huge:from=2", "none"),
        pytest.param("oversized_parts:from=2,until=2", "seeded4", marks=pytest.mark.nightly),
    ],
)
def test_local__shards_that_no_steps_make__are_left_out_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, codec: str
) -> None:
    monkeypatch.setenv("TALLYSTICK_HOOKS", MODULE)
    rules = patient_rules(exchange_timeout=4_000, gradient_codec=codec)
    swarm = swarm_of(tmp_path, rules=rules)
    swarm.behaviours["bob"] = behaviour_of(text, rules)

    finished(swarm)

    bob = swarm.session_of("bob").peer
    assert 2 in {line["step"] for line in swarm.lines("claim_stored", of="bob")}
    merged = [claim for claims in swarm.merged().values() for claim in claims]
    assert (bob, 2) not in {(claim.peer, claim.round) for claim in merged}
    assert weights_roots(swarm) == {plain_root(swarm)}
    assert sorted(sealed_items(swarm)) == [*range(ITEMS)]


def test_local__several_segments__go_on_from_each_other(tmp_path: Path) -> None:
    local = LOCAL.model_copy(update={"segments": 2})
    rules = patient_rules()
    swarm = finished(swarm_of(tmp_path, local=local, units_per_step=6, steps=2, rules=rules))

    claims = swarm.claims()
    assert {len(claim.numbers) for claim in claims} == {2}
    assert weights_roots(swarm) == {plain_root(swarm)}
    assert swarm.losses()[2] < swarm.losses()[1]


OVERLAP = LOCAL.model_copy(update={"segments": 2, "overlap": True})


@pytest.mark.parametrize("codec", ["none", "seeded4"])
def test_overlap__lines_are_slow__peers_work_ahead_and_have_the_weights_of_a_plain_loop(
    tmp_path: Path, codec: str
) -> None:
    rules = patient_rules(gradient_codec=codec, exchange_timeout=8_000)
    swarm = swarm_of(tmp_path, local=OVERLAP, units_per_step=6, rules=rules)
    slow_to_deliver(swarm, "bob", 2, seconds=1.0)

    finished(swarm)

    ahead = {claim.round: swarm.ahead()[claim.digest()] for claim in swarm.claims()}
    assert ahead[StepNumber(1)] == 0 and ahead[StepNumber(3)] > 0
    assert weights_roots(swarm) == {plain_root(swarm)}
    assert sorted(sealed_items(swarm)) == [*range(6 * ROUNDS)]


def test_overlap__a_claim_is_delivered_late__nothing_differs(tmp_path: Path) -> None:
    rules = patient_rules(exchange_timeout=3_000)
    swarm = swarm_of(tmp_path, local=OVERLAP, units_per_step=6, rules=rules)
    slow_to_deliver(swarm, "bob", 2)

    finished(swarm)

    bob, merged = swarm.session_of("bob").peer, swarm.merged()
    assert (bob, 2) in {(claim.peer, claim.round) for claim in merged[3]}
    assert weights_roots(swarm) == {plain_root(swarm)}
    assert sorted(sealed_items(swarm)) == [*range(6 * ROUNDS)]


@pytest.mark.parametrize("who", ["bob", COORDINATOR])
def test_overlap__one_dies_while_others_work_ahead__nothing_differs(
    tmp_path: Path, who: str
) -> None:
    rules = patient_rules(exchange_timeout=8_000)
    swarm = swarm_of(tmp_path, local=OVERLAP, units_per_step=6, rules=rules)
    swarm.deadly = {("ann", "round_closed", 2): who}

    finished(swarm)

    assert swarm.restarts == 1
    assert weights_roots(swarm) == {plain_root(swarm)}
    assert sorted(sealed_items(swarm)) == [*range(6 * ROUNDS)]


def test_overlap__other_items_are_dealt_than_were_granted__work_ahead_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def later(state: RoundState) -> list[ItemNumber]:
        return [ItemNumber(item + 6) for item in items_ahead(state)]

    monkeypatch.setattr(coordinator_items, "items_ahead", later)
    rules = patient_rules()
    swarm = finished(swarm_of(tmp_path, local=OVERLAP, units_per_step=6, rules=rules))

    assert {line["counts"] for line in swarm.lines("ahead")} == {False}
    assert not any(swarm.ahead().values()) and not swarm.lines("item_lost")
    assert weights_roots(swarm) == {plain_root(swarm)}
    assert sorted(sealed_items(swarm)) == [*range(6 * ROUNDS)]


def test_overlap__a_grant_is_lost_on_its_way__what_comes_after_it_is_not_counted_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = Router.grant

    def second(self: Router, peer: PeerId, items: Sequence[ItemNumber]) -> ItemNumber | None:
        return grant(self, peer, items) and grant(self, peer, items)

    monkeypatch.setattr(Router, "grant", second)
    swarm = swarm_of(tmp_path, local=OVERLAP, units_per_step=6, rules=patient_rules())

    finished(swarm)

    assert {line["counts"] for line in swarm.lines("ahead")} == {False}
    assert not swarm.lines("item_lost") and not swarm.lines("gradient_dropped")
    assert weights_roots(swarm) == {plain_root(swarm)}


class _Timed(Around):
    """Applies no faster than this; may end an item only once others were asked for their claims."""

    def __init__(self, seconds: float, late: Callable[[RoundNumber, int], bool], *how: Any) -> None:
        super().__init__(*how)
        self._seconds, self._late = seconds, late

    async def run(self, item: ItemNumber, direction: Direction, source: Source) -> Leaf | None:
        """See `Strategy.run`."""
        num_before = len(self._inner.leaves())
        while direction == "whole" and self._late(self._round, num_before):
            await asyncio.sleep(0.01)
        return await self._inner.run(item, direction, source)

    def apply(self, *args: Any) -> Any:
        """See `Strategy.apply`."""
        time.sleep(self._seconds)
        return self._inner.apply(*args)


def test_overlap__one_applies_seals_later_than_others__has_its_part_of_each_round(
    tmp_path: Path,
) -> None:
    swarm = swarm_of(
        tmp_path, local=OVERLAP, units_per_step=6, rules=patient_rules(exchange_timeout=20_000)
    )
    slow_to_deliver(swarm, "bob", 2, seconds=1.5)
    swarm.behaviours["cem"] = Computing(partial(_Timed, 0.5, lambda *_: False))

    finished(swarm)

    cem, merged = swarm.session_of("cem").peer, swarm.merged()
    assert all(cem in {claim.peer for claim in claims} for claims in merged.values())
    assert len(merged) == ROUNDS and weights_roots(swarm) == {plain_root(swarm)}


def test_overlap__time_is_over_in_the_middle_of_an_item__what_was_done_ahead_is_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant = Router.grant

    def at_most_two(self: Router, peer: PeerId, items: Sequence[ItemNumber]) -> ItemNumber | None:
        return grant(self, peer, items) if len(self._next[peer]) < 2 else None

    monkeypatch.setattr(Router, "grant", at_most_two)
    local = OVERLAP.model_copy(update={"segments": 3, "round_time": 4_000})
    rules = patient_rules(exchange_timeout=8_000)
    swarm = swarm_of(tmp_path, local=local, units_per_step=9, rules=rules)
    slow_to_deliver(swarm, "bob", 2, seconds=1.0)

    def late(round: RoundNumber, num_before: int) -> bool:
        claimed = any(line["step"] == 3 for line in swarm.lines("claim_stored", of="ann"))
        return round == 3 and num_before == 2 and not claimed

    swarm.behaviours["bob"] = Computing(partial(_Timed, 0.0, late))

    finished(swarm)

    bob = swarm.session_of("bob").peer
    [claim] = [claim for claim in swarm.claims() if (claim.peer, claim.round) == (bob, 3)]
    assert swarm.ahead()[claim.digest()] == 2 == len(claim.numbers)
    assert weights_roots(swarm) == {plain_root(swarm)}


@pytest.mark.parametrize("is_damaged", [False, True])
def test_local__a_peer_dies_between_two_segments__goes_on_from_the_last_one_that_it_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_damaged: bool
) -> None:
    monkeypatch.setattr(items, "KEPT_SHARE", 0)  # after every segment
    local = LOCAL.model_copy(update={"segments": 2, "quorum": 3})
    swarm = swarm_of(tmp_path, local=local, units_per_step=6, steps=2, rules=patient_rules())
    done: list[ItemNumber] = []  # by bob in round 2

    def second_of_bob(name: str, line: Line) -> str | None:
        if (name, line["event"], line.get("step")) != ("bob", "item_done", 2):
            return None
        done.append(line["item"])
        if len(done) != 2:
            return None
        [kept] = (tmp_path / "bob").rglob("groups/00/round/kept")
        if is_damaged:
            data = kept.read_bytes()
            kept.write_bytes(data[:-40] + bytes([data[-40] ^ 1]) + data[-39:])
        return "bob"

    swarm.dies_at = second_of_bob

    finished(swarm)

    first, _, *again = done
    resumed = [line["items"] for line in swarm.lines("items_resumed", of="bob")]
    assert resumed == ([] if is_damaged else [1])
    assert is_damaged or first not in again
    assert weights_roots(swarm) == {plain_root(swarm)}
    assert sorted(sealed_items(swarm)) == [*range(12)]
