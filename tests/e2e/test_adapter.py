"""A checked job of two stages that trains an adapter, from its file to a folder that `peft` opens.

Everything is drawn, so that the test does not depend on luck.
"""

import asyncio
import json
from pathlib import Path

import pytest

from contracts.terms.ids import JobId
from market.bodies.routes import GET_CONVICTIONS, GET_STEPS
from tests.support.chat_model import chat_folder, chat_text
from tests.support.money_story import account_of
from tests.support.stack import said, stack, verified

NAMES = ("ann", "bob", "cem", "dan")
STEPS = 4


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
async def test_adapter__ordered_by_its_file__is_trained_checked_paid_and_opened_by_peft(
    tmp_path: Path,
) -> None:
    from peft import PeftModel  # slow to import
    from transformers import AutoModelForCausalLM

    base, file = chat_folder(tmp_path / "base", "llama"), tmp_path / "job.json"
    (tmp_path / "text.txt").write_text(chat_text())
    fields = {
        "name": "an adapter", "recipe": "micro", "budget": 1000, "price_ceiling": 2_000_000,
        "deadline": "1h", "data": "text.txt", "steps": STEPS, "stages": 2, "peers_per_stage": 2,
        "model": {"folder": "base", "sequence_length": 64}, "adapter": {"rank": 4},
        "checking": "on", "audit_rate": 1.0, "vesting_window": 2,
    }  # fmt: skip
    file.write_text(json.dumps(fields))

    async with stack(tmp_path, forked=True) as running:
        for name in NAMES:
            running.start_provider(name)
        market = ("--market", running.client.url)
        submit = ("job", "submit", str(file), "--yes", *market)
        job = JobId(bytes.fromhex((await asyncio.to_thread(said, running, *submit))["job"]))
        view = await running.settled(job, within=200)
        steps = (await running.client.whole(GET_STEPS, job=job)).steps
        for to, more in ("adapter", ()), ("merged", ("--merged",)):
            fetch = ("job", "download", job.hex(), "--to", str(tmp_path / to), *more, *market)
            await asyncio.to_thread(said, running, *fetch)

        assert (view.outcome, view.progress.trained) == ("finished", STEPS)
        assert (await running.client.whole(GET_CONVICTIONS, job=job)).convictions == ()
        assert sum(each.outcomes.matched for each in steps) >= 2 * STEPS
        work = await running.work(job)
        for name in NAMES:
            pay = work.pay[account_of(running, name)]
            assert pay.vested == pay.earned > 0
        assert (await verified(running, job))["verdict"] == "anchored"
    opened = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base), tmp_path / "adapter"
    )
    trained = {name: each for name, each in opened.state_dict().items() if "lora_B" in name}
    assert trained and all(each.abs().max() > 0 for each in trained.values())
    AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
