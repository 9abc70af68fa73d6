"""A market, four providers at home, and a checked job of local steps from its order to its claim.

Each has a cable of 25 ms and 50 Mbit/s each way, so 100 ms there and back; two providers are behind
routers that masquerade, so nobody can dial them. Before it a job of `every_step` trains the same
model there, unchecked, on equally many tokens a step. `-s` prints what both came to.
"""

import json
import time
from contextlib import ExitStack
from operator import le
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.terms.messages import class_name
from tests.support.machines import MARKET, Machines, events, machines
from tests.support.namespaces import need_namespaces, packets_as_sent
from tests.support.patience import patience
from training.stages.exact import device_class

NAMES, HIDDEN = ("ann", "bob", "cem", "dan"), ("cem", "dan")
DELAY, RATE = 0.025, "50mbit"  # of a cable, each way
TOKENS, ROWS, INNER_STEPS = 60, 1, 50
JOB: dict[str, Any] = {
    "recipe": "tiny_llama",
    "model": {
        "width": 128, "num_layers": 4, "num_kv_heads": 4, "ffn_width": 344,
        "sequence_length": TOKENS,
    },
    "rows_per_unit": ROWS, "budget": 50, "price_ceiling": 2_000, "deadline": "1h",
}  # fmt: skip
JOBS: dict[str, dict[str, Any]] = {
    "every_step": {"stages": 2, "peers_per_stage": 2, "units_per_step": 4, "steps": 20},
    "local": {
        "strategy": "local", "local": {"inner_steps": INNER_STEPS}, "peers_per_stage": 4,
        "steps": 8, "gradient_codec": "seeded4", "checking": "on", "audit_rate": 0.1,
        "device_class": class_name(device_class(torch.device("cpu"))),
    },
}  # fmt: skip


def trained(there: Machines, name: str, market: str) -> dict[str, Any]:
    """What a job came to, from its order to its end."""
    file, sent = there.folder / f"{name}.json", [there.sites[each].bytes_sent() for each in NAMES]
    file.write_text(json.dumps(JOB | JOBS[name] | {"name": name}))
    known = {*there.coordinators()}
    submit = ("tallystick", "job", "submit", str(file), "--market", market, "--wait", "--yes")
    there.run("ann", *submit, "--wallet", str(there.folder / "poster.json"), within=300)
    [log] = {*there.coordinators()} - known
    [first, *_, end] = [line for line in events(log, "seal_stored") if line["loss"] is not None]
    items = sum(
        line["items"]
        for line in events(log, "claim_stored")
        if line["stage"] == 0 and first["step"] < line["step"] <= end["step"]
    )
    steps = INNER_STEPS if name == "local" else 1
    seconds = (end["mono"] - first["mono"]) / 1e6
    spent = sum(there.sites[each].bytes_sent() for each in NAMES) - sum(sent)
    return {
        "tokens/s": items * steps * ROWS * TOKENS / seconds,
        "loss": (first["loss"], end["loss"]),
        "bytes": spent,
        "relayed": events(log, "relayed")[-1]["bytes"] / spent,
    }


@pytest.mark.nightly
@pytest.mark.root  # network namespaces
@pytest.mark.timeout(900)
def test_homes__two_behind_routers__local_steps_checked_paid_and_much_faster(
    tmp_path: Path,
) -> None:
    need_namespaces()
    with machines(tmp_path, MARKET, *NAMES, behind_routers=HIDDEN) as there, ExitStack() as slow:
        for site in there.sites.values():
            packets_as_sent(site)
            slow.enter_context(site.slow(delay=DELAY, rate=RATE))
        market = there.start_market(*NAMES)

        found = dict[str, dict[str, Any]]()
        for name in JOBS:
            before = there.claimed(market, NAMES)
            found[name] = trained(there, name, market)
            ends = time.monotonic() + patience(60)
            while any(map(le, there.claimed(market, NAMES), before)):
                assert time.monotonic() < ends, there.told()

        print(json.dumps(found))
        assert any(events(log, "audited") for log in tmp_path.glob("*/logs/peer-*.log"))
        assert found["local"]["loss"][1] < found["local"]["loss"][0]
        assert found["local"]["tokens/s"] > 10 * found["every_step"]["tokens/s"]
