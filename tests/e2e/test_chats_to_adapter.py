"""From a model's folder and a file of chats to an adapter, typed as docs/post-a-job.md has it.

Everything is drawn, so that the test does not depend on luck.
"""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.terms.ids import JobId
from market.bodies.routes import GET_CONVICTIONS, GET_STEPS
from tests.support.chats import VOCABULARY, made_up, write_chats, write_tokenizer
from tests.support.documents import blocks, section
from tests.support.money_story import account_of
from tests.support.stack import ROOT, Stack, stack, verified

NAMES = ("ann", "bob", "cem", "dan")
STEPS = 4
SMALLER = f"""
steps: {STEPS}
model: {{folder: my-model, sequence_length: 96}}
peers_per_stage: 2
validate_every: 2
optimizer: {{learning_rate: 1.0e-3, warmup_steps: 1, schedule: linear}}
audit_rate: 1.0
vesting_window: 2
price_ceiling: 2000000
"""
"""What differs from the file in the document, for a model of 40,000 parameters."""


def smaller(file: str) -> str:
    """A job file with these lines instead of its own of these fields, and without `passes`."""
    changed = {line.partition(":")[0] for line in SMALLER.split("\n")} | {"passes"}
    kept = (line for line in file.splitlines() if line.partition(":")[0] not in changed)
    return "\n".join(kept) + SMALLER


def write_model(folder: Path) -> None:
    """A small chat model, as `transformers` saves it."""
    from transformers import LlamaConfig, LlamaForCausalLM  # slow to import

    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    write_tokenizer(folder)


def type_in(running: Stack, folder: Path, text: str) -> None:
    """Type `text` into a bash in `folder`; no line may fail."""
    program = folder / "bin" / "tallystick"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tallystick "$@"\n')
    program.chmod(0o755)
    environment = running.environment("person") | {
        "HOME": str(folder),
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "TALLYSTICK_MARKET": running.client.url,
    }
    done = subprocess.run(
        ("bash", "-eu", "-o", "pipefail", "-c", text),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nightly
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
async def test_chats__typed_as_documented__are_a_checked_and_paid_adapter_that_peft_opens(
    tmp_path: Path,
) -> None:
    from peft import PeftModel  # slow to import
    from transformers import AutoModelForCausalLM

    typed = section((ROOT / "docs" / "post-a-job.md").read_text(), "Fine-tune on chats")
    (file,) = (each.text for each in blocks(typed) if "name: my chats" in each.text)
    (shell,) = (each.text for each in blocks(typed) if each.language == "sh")
    folder = tmp_path / "a person"
    folder.mkdir()
    (folder / "chats.yaml").write_text(smaller(file))
    write_chats(folder / "chats.jsonl", made_up())
    write_model(folder / "my-model")

    async with stack(tmp_path, forked=True) as running:
        for name in NAMES:
            running.start_provider(name)
        await asyncio.to_thread(type_in, running, folder, shell)
        job = JobId(bytes.fromhex((folder / "job.id").read_text().strip()))
        view = await running.settled(job, within=200)
        steps = (await running.client.whole(GET_STEPS, job=job)).steps

        assert (view.outcome, view.progress.trained) == ("finished", STEPS)
        assert (await running.client.whole(GET_CONVICTIONS, job=job)).convictions == ()
        assert sum(each.outcomes.matched for each in steps) >= 2 * STEPS
        work = await running.work(job)
        for name in NAMES:
            pay = work.pay[account_of(running, name)]
            assert pay.vested == pay.earned > 0
        assert (await verified(running, job))["verdict"] == "anchored"
    opened = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(folder / "my-model"), folder / "my-adapter"
    )
    trained = {name: each for name, each in opened.state_dict().items() if "lora_B" in name}
    assert trained and all(each.abs().max() > 0 for each in trained.values())
    AutoModelForCausalLM.from_pretrained(folder / "my-chat-model")
    lines = [
        json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [line["step"] for line in lines if line["loss"] is not None][:STEPS] == [1, 2, 3, 4]
    assert [line["step"] for line in lines if line["validation_loss"] is not None] == [2, 4]
