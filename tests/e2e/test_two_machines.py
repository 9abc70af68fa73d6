"""A market and two providers on three machines of one network, by the lines that are printed.

The machines are network namespaces: nobody reaches another one's loopback. A job of two stages runs
from its order to its claim; its tensors go from peer to peer, not through the coordinator.
"""

from pathlib import Path

import pytest

from tests.support.machines import MARKET, events, machines
from tests.support.namespaces import need_namespaces

JOB = """\
name: apart
recipe: micro
steps: 50
stages: 2
peers_per_stage: 1
budget: 10
price_ceiling: 2000000
deadline: 1h
checking: off
"""


@pytest.mark.nightly
@pytest.mark.root  # network namespaces
@pytest.mark.timeout(400)
def test_listen__three_machines__a_job_from_order_to_claim_and_peers_call_each_other(
    tmp_path: Path,
) -> None:
    need_namespaces()
    (tmp_path / "job.yaml").write_text(JOB)
    with machines(tmp_path, MARKET, "ann", "bob") as there:
        market = there.start_market("ann", "bob")
        wallet = ("--wallet", str(tmp_path / "poster.json"))
        submit = ("tallystick", "job", "submit", str(tmp_path / "job.yaml"), "--market", market)
        there.run("bob", *submit, *wallet, "--wait", "--yes")
        assert all(there.claimed(market, ("ann", "bob")))

        (coordinator,) = there.coordinators()
        relayed = events(coordinator, "relayed")[-1]["bytes"]
        peers = [next((tmp_path / name / "logs").glob("peer-*.log")) for name in ("ann", "bob")]
        received = sum(events(peer, "seal_applied")[-1]["bytes_in"] for peer in peers)
        assert received > 1_000_000
        assert relayed < received / 100
