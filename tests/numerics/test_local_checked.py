"""A checked job of local steps over real messages: honest claims match, a liar's do not."""

import asyncio
from pathlib import Path

import pytest
import torch

from tallystick.gym.registry import MODULE, behaviour_of
from tests.numerics.test_local_swarm import CORPUS, LOCAL, PEERS, config_of
from tests.support.evidence_swarm import bundles_in, evidence_swarm
from tests.support.swarm_job import MemorySwarm
from verification.auditing.rerun import rerun


def checked_swarm(folder: Path) -> MemorySwarm:
    """Everything is drawn, reports too."""
    torch.set_num_threads(1)
    local = {"strategy": "local", "local": LOCAL}
    return evidence_swarm(folder, config_of(), CORPUS, *PEERS, outside=("out", "oda"), **local)


def test_checked_job__honest__every_claim_is_replayed_and_matches(tmp_path: Path) -> None:
    swarm = checked_swarm(tmp_path)

    asyncio.run(swarm.run())

    docket, reports = swarm.docket(), swarm.claims("report")
    assert docket.is_clear and not docket.convicts
    assert {each.findings.verdict for each in swarm.reports()} == {"match"}
    heard = {claim.subject for claim in reports}
    assert {claim.digest() for claim in (*swarm.claims(), *swarm.claims("bucket"))} <= heard
    assert heard & {claim.digest() for claim in reports}  # repeated from outside


def test_checked_job__difference_that_is_scaled__convicts_its_peer_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TALLYSTICK_HOOKS", MODULE)
    swarm = checked_swarm(tmp_path)
    swarm.behaviours["ann"] = behaviour_of("scaled:from=2", swarm.papers.spec.message.rules)

    asyncio.run(swarm.run())

    assert set(swarm.docket().convicts) == {swarm.session_of("ann").peer}
    outcome = asyncio.run(rerun(bundles_in(tmp_path)[0]))
    assert outcome.verdict == "mismatch"
