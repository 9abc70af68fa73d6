"""Does the report fail when a figure does not hold, and show those that do?"""

import math
from dataclasses import replace
from typing import Any

import pytest

from contracts.governance.pay import PayLeaf
from contracts.terms.amounts import BaseUnits, read_tokens
from contracts.terms.ids import StageIndex
from contracts.terms.moments import UnixMillis, UnixSeconds
from tallystick.demo.cast import LATE, MACHINES, OUTBID, Notes
from tallystick.demo.report import Money, Report, Swarm
from tallystick.demo.shares import JobWork, Worker
from tests.support.history import make_session, make_wallet
from tests.unit.tallystick.demo.factories import checked

VICTIM = MACHINES[4]
ACCOUNTS = {machine: make_wallet(machine.name).account for machine in (*MACHINES, LATE)}
PEERS = {machine: make_session(machine.name).peer for machine in (*MACHINES, LATE)}


def line(at: int, event: str, **fields: Any) -> dict[str, Any]:
    return {"at": at, "process": "coordinator", "event": event, **fields}


def swarm() -> Swarm:
    """Two steps of 9 units in each of 3 stages; the victim dies in the second, the tenth works."""
    first = {PEERS[machine]: 3 for machine in MACHINES}
    second = {PEERS[machine]: 3 for machine in (*MACHINES, LATE) if machine != VICTIM}
    places = {machine: StageIndex(number % 3) for number, machine in enumerate(MACHINES)}
    work = JobWork(
        num_stages=3,
        num_steps=2,
        lost=0,
        workers={
            PEERS[machine]: Worker(ACCOUNTS[machine], stage)
            for machine, stage in (places | {LATE: places[VICTIM]}).items()
        },
        steps=(first, second),
        pay={
            account: PayLeaf(account, BaseUnits(12), BaseUnits(10)) for account in ACCOUNTS.values()
        },
        forfeited={ACCOUNTS[VICTIM]: BaseUnits(2)},
    )
    joined = [
        line(1000 + n, "peer_joined", peer=peer.hex()) for n, peer in enumerate(PEERS.values())
    ]
    seals = [line(5000, "seal_stored", step=1), line(9000, "seal_stored", step=2)]
    return Swarm(
        work=work,
        lines=[*joined, *seals],
        notes=Notes(UnixMillis(0), VICTIM.name, UnixMillis(6000), late_at=UnixMillis(7000)),
        machines={account: machine for machine, account in ACCOUNTS.items()},
        victim=PEERS[VICTIM],
    )


def report() -> Report:
    return Report(
        losses=[5.0, 4.0],
        reference=[5.0, 4.0001],
        validation_perplexity=10.0,
        validated_step=20,
        unigram_perplexity=20.0,
        flops=1000,
        price=read_tokens(OUTBID.ask),
        ceiling=2_000_000_000,
        vested=100,
        money=Money(
            funded=200,
            reclaimed=50,
            free=5,
            unspent=25,
            claimed={account: 10 for account in ACCOUNTS.values()},
            unclaimed=20,
            burned=3,
            bonded=7,
            free_at=UnixSeconds(1_750_000_000),
            disagreements=(),
            seal_to_claim=4.0,
            block=7,
            escrow=ACCOUNTS[LATE],
            seals=ACCOUNTS[VICTIM],
        ),
        swarm=swarm(),
        checked=checked(),
        verdict="anchored",
        phases={"training": 1.0},
    )


def test_problems__everything_holds__are_none() -> None:
    assert report().problems() == []


def test_lines__first_five__say_in_plain_words_what_happened() -> None:
    lines = list(replace(report(), verdict="anchored: 2 steps").lines())[:6]

    assert lines == [
        "== report",
        "10 providers trained a model of 3 stages for 2 steps: its loss went from 5.00 to 4.00, "
        "0 units were lost.",
        "It cost the poster 0.00012 of the 0.0002 tokens that it had put into escrow.",
        "provider-2 signed false work and lost 2.5 tokens of stake; provider-8 accused another "
        "falsely and lost no stake; 0.000002 tokens of their pay were forfeited.",
        "3 pieces of work were drawn by lot and done again by others (30% more computing); a fresh "
        "process then checked the whole job from one file, and found it anchored.",
        "Of 0.0002 tokens put in, 0.0001 are paid to those who worked, 0.00002 were earned and did "
        "not vest, 0.000055 are back with the poster, 0.000025 come back later.",
    ]


def test_lines__nobody_cheated__say_so() -> None:
    verdicts = replace(checked().verdicts, heard={})

    lines = replace(report(), checked=replace(checked(), verdicts=verdicts)).lines()

    assert "Nobody was found to cheat." in lines


def test_lines__a_good_report__have_every_provider_the_kill_and_the_late_one() -> None:
    text = "\n".join(report().lines())

    assert all(machine.name in text for machine in (*MACHINES, LATE))
    assert "3.0 s from SIGKILL to the next sealed step" in text
    assert "2.0 s from its start to its first paid unit" in text
    assert "all 9 after 1.0 s" in text
    assert "perplexity 10.00 after step 20, byte unigram 20.00 (50% below)" in text
    assert "1600.000000 tokens/PFLOP, the ask of provider-11, which lost" in text


@pytest.mark.parametrize(
    "change",
    [
        {"validation_perplexity": 17.1},
        {"reference": [5.0, 4.001]},
        {"reference": [5.0]},
        {"vested": 101},
        {"money": replace(report().money, disagreements=("a row",))},
        {"money": replace(report().money, free=6)},
        {"price": 2_000_000_000},
        {"swarm": replace(swarm(), work=replace(swarm().work, lost=1))},
        {"swarm": replace(swarm(), notes=Notes(late_at=UnixMillis(7000)))},
        {"swarm": replace(swarm(), notes=Notes(victim=VICTIM.name, killed_at=UnixMillis(6000)))},
        {"swarm": replace(swarm(), work=replace(swarm().work, pay={}))},
    ],
    ids=[
        "perplexity", "loss", "fewer steps", "vested", "events", "sum", "nobody lost",
        "units lost", "no kill", "nobody late", "pay",
    ],
)  # fmt: skip
def test_problems__a_figure_that_does_not_hold__is_one(change: dict[str, Any]) -> None:
    assert len(replace(report(), **change).problems()) == 1


def test_difference__without_a_plain_run__is_nothing() -> None:
    assert replace(report(), reference=None).difference == 0.0
    assert replace(report(), reference=[]).difference == math.inf
