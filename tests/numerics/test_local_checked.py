"""A checked job of local steps over real messages: honest claims match, a liar's do not."""

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.terms.encoding import encode
from contracts.terms.errors import NotFound
from contracts.terms.ids import SessionKey
from contracts.terms.messages import LocalSpec
from tallystick.gym.registry import MODULE, behaviour_of
from tests.numerics.test_local_swarm import CORPUS, LOCAL, PEERS, config_of, slow_to_deliver
from tests.support.evidence_swarm import bundles_in, evidence_swarm
from tests.support.lying import Answer, AnsweringTransport
from tests.support.swarm_job import Line, MemorySwarm
from training.transport.calls import GET_BYTES
from training.transport.port import Handler
from verification import docket
from verification.auditing.rerun import rerun

MEAN = LOCAL.model_copy(update={"moments": "mean"})
OVERLAP = LOCAL.model_copy(update={"segments": 2, "overlap": True})


def checked_swarm(folder: Path, *peers: str, **changed: Any) -> MemorySwarm:
    """Everything is drawn, reports too; each peer does one item a round."""
    torch.set_num_threads(1)
    config, local = config_of(), {"strategy": "local", "local": LOCAL, **changed}
    num_items = len(peers) * local["local"].segments
    config = replace(config, data=replace(config.data, units_per_step=num_items))
    return evidence_swarm(folder, config, CORPUS, *peers, outside=("out", "oda"), **local)


@pytest.mark.parametrize("local", [LOCAL, MEAN, OVERLAP])
def test_checked_job__honest__every_claim_is_replayed_and_matches(
    tmp_path: Path, local: LocalSpec
) -> None:
    swarm = checked_swarm(tmp_path, *PEERS, local=local)

    asyncio.run(swarm.run())

    docket, reports = swarm.docket(), swarm.claims("report")
    assert any(swarm.ahead().values()) == local.overlap
    assert docket.is_clear and not docket.convicts
    assert {each.findings.verdict for each in swarm.reports()} == {"match"}
    heard = {claim.subject for claim in reports}
    assert {claim.digest() for claim in (*swarm.claims(), *swarm.claims("bucket"))} <= heard
    assert heard & {claim.digest() for claim in reports}  # repeated from outside


def test_checked_job__a_peer_delivers_late__its_claim_is_merged_later_replayed_and_matches(
    tmp_path: Path,
) -> None:
    swarm = checked_swarm(tmp_path, *PEERS, "dan", exchange_timeout=3_000)
    slow_to_deliver(swarm, "bob", 2)

    asyncio.run(swarm.run())

    bob, docket = swarm.session_of("bob").peer, swarm.docket()
    [late] = [claim for claim in swarm.claims() if (claim.peer, claim.round) == (bob, 2)]
    assert late in [claim for claims in swarm.merged().values() for claim in claims]
    assert late not in swarm.merged()[2] and docket.is_clear and not docket.convicts
    verdicts = {each.claim.subject: each.findings.verdict for each in swarm.reports()}
    assert verdicts[late.digest()] == "match" and {*verdicts.values()} == {"match"}


@pytest.mark.nightly
def test_checked_job__a_void_round__its_claims_are_merged_by_the_next_and_replayed(
    tmp_path: Path,
) -> None:
    local = LOCAL.model_copy(update={"quorum": 3})
    swarm = checked_swarm(tmp_path, *PEERS, local=local, exchange_timeout=2_000)
    slow_to_deliver(swarm, "bob", 2)

    asyncio.run(swarm.run())

    merged, docket = swarm.merged(), swarm.docket()
    assert 2 not in merged and {claim.round for claim in merged[3]} == {2}
    assert docket.is_clear and not docket.convicts
    verdicts = {each.claim.subject: each.findings.verdict for each in swarm.reports()}
    assert {claim.digest() for claim in merged[3]} <= verdicts.keys()
    assert {*verdicts.values()} == {"match"}


class _Forgetful:
    """A peer's handler that has lost some bytes."""

    def __init__(self, lost: set[bytes], handler: Handler) -> None:
        self._lost, self._handler = lost, handler

    async def handle(
        self, caller: SessionKey, method: str, header: bytes, tensors: tuple[memoryview, ...]
    ) -> Answer:
        if method == GET_BYTES.name and any(digest in header for digest in self._lost):
            raise NotFound("lost")
        return await self._handler.handle(caller, method, header, tensors)


@pytest.mark.parametrize(
    ("quorum", "what", "losers"),
    [
        (2, "bucket", ("bob",)),
        pytest.param(2, "work", ("bob",), marks=pytest.mark.nightly),
        (2, "bucket", ("ann", "cem")),  # else their false sum of them could not be shown
        (3, "bucket", ("ann", "cem")),  # a void round
    ],
)
def test_checked_job__claims_of_the_round_before__their_shards_stay_with_maker_and_takers(
    quorum: int,
    what: str,
    losers: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only sums are drawn, or only work; bob made the shards, and some have them no more."""
    kind = encode([what])[1:]
    monkeypatch.setattr(docket, "is_drawn", lambda _, name, _rate: name[1:].startswith(kind))
    local = LOCAL.model_copy(update={"quorum": quorum})
    swarm = checked_swarm(tmp_path, *PEERS, local=local, exchange_timeout=3_000)
    slow_to_deliver(swarm, "bob", 2)
    wrap, watch, lost = swarm.wrap, swarm.watch, set[bytes]()
    bob = swarm.session_of("bob").peer

    def then_lost(who: str, line: Line) -> None:
        watch(who, line)
        if (who, line["event"]) == ("bob", "seal_applied") and line["step"] > 2:
            merged = swarm.merged().get(line["step"], ())
            own = [each for each in merged if (each.peer, each.round) == (bob, 2)]
            lost.update(output.digest for each in own for output in each.outputs)

    swarm.watch = then_lost
    swarm.wrap = lambda who, transport: (
        AnsweringTransport(wrap(who, transport), partial(_Forgetful, lost))
        if who in losers
        else wrap(who, transport)
    )

    asyncio.run(swarm.run())

    [(when, late)] = [
        (step, claim)
        for step, claims in swarm.merged().items()
        for claim in claims
        if (claim.peer, claim.round) == (bob, 2)
    ]
    sums = [claim for claim in swarm.claims("bucket") if claim.round == when]
    verdicts = {each.claim.subject: each.findings.verdict for each in swarm.reports()}
    assert when > 2 and lost
    assert {claim.digest() for claim in (sums if what == "bucket" else [late])} <= verdicts.keys()
    assert {*verdicts.values()} == {"match"}


@pytest.mark.parametrize("lie", ["skipped_step", "stale_rows"])
def test_checked_job__work_ahead_that_lies__is_convicted_and_its_bundle_confirms_it(
    lie: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYSTICK_HOOKS", MODULE)
    swarm = checked_swarm(tmp_path, *PEERS, "dan", gradient_codec="seeded4", local=OVERLAP)
    rules = swarm.papers.spec.message.rules
    swarm.behaviours["ann"] = behaviour_of(f"{lie}:from=2", rules)

    asyncio.run(swarm.run())

    liar = swarm.session_of("ann").peer
    assert set(swarm.docket().convicts) == {liar}
    ahead, claims = swarm.ahead(), swarm.claims()
    assert any(ahead[each.digest()] for each in claims if each.peer == liar)
    outcome = asyncio.run(rerun(bundles_in(tmp_path)[0]))
    assert outcome.verdict == "mismatch"


LIES = (("skipped_step", "none"), ("scaled_difference", "seeded4"), ("false_moments", "seeded4"))
OTHER_LIES = (
    ("stale_rows", "seeded4"),
    ("half_rows", "seeded4"),
    ("coarse_weights", "bfloat16"),
    ("scaled_difference", "none"),
    ("scaled_difference", "bfloat16"),
    ("scaled_difference", "seeded8"),
    ("copied_difference", "seeded4"),
    ("poisoned_embedding", "seeded4"),
    ("poisoned_embedding", "none"),
    ("poisoned_head", "seeded4"),
    ("poisoned_head", "none"),
    ("wrong_sum", "seeded4"),
)


@pytest.mark.parametrize(
    ("lie", "codec"),
    [*LIES, *(pytest.param(*each, marks=pytest.mark.nightly) for each in OTHER_LIES)],
)
def test_checked_job__one_of_four_lies__is_convicted_alone_and_loses_what_waits(
    lie: str, codec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYSTICK_HOOKS", MODULE)
    local = LOCAL if lie != "false_moments" else MEAN
    swarm = checked_swarm(tmp_path, *PEERS, "dan", gradient_codec=codec, steps=3, local=local)
    rules = swarm.papers.spec.message.rules
    swarm.behaviours["ann"] = behaviour_of(f"{lie}:from=2", rules)

    asyncio.run(swarm.run())

    liar, record = swarm.session_of("ann").peer, swarm.history().record
    assert record is not None and record.ended
    assert set(swarm.docket().convicts) == {liar}
    assert {peer for peer, _, _ in record.pay.forfeits} == {liar}
    outcome = asyncio.run(rerun(bundles_in(tmp_path)[0]))
    assert outcome.verdict == "mismatch"
