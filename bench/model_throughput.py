"""How fast does a replica train models of real sizes on one device, and what does it hold there?

`python -m bench.model_throughput [--device NAME] [--model NAME] [--steps N] [--quick]` takes inner
steps of the strategy `local` (`Replica` on a whole model, fp32) on seeded random tokens, two items
of 4 rows of 1,024 tokens a step, beside a plain loop of the same decoder with `torch.optim.AdamW`
and torch's default settings, in the same run, fp32 and (on a GPU) TF32. Seconds are medians over
the steps after `WARM`; memory is the most that torch allocated. Steps are traced, as in a job; what
they take without is told beside. What a round takes beyond its steps is told for models up to
`SMALL` parameters: the shard of a difference, which is made on the CPU, and the root of the state.
"""

import gc
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from bench.measuring import about, limit, markdown, parsed, parser_of
from contracts.terms.items import ItemNumber
from training.config import ModelConfig, OptimizerConfig, whole_model
from training.flops import item_flops
from training.memory import num_parameters, stage_memory
from training.models.decoder import StageModel
from training.models.parameters import parameter_shapes
from training.stages.exact import device_class, set_threads
from training.stages.stage import Stage, UnitInputs
from training.strategies.local.exchange import LocalCodec
from training.strategies.local.inner import Replica

ITEMS, ROWS, TOKENS = 2, 4, 1024  # of a step; of an item; of a row
WARM, SMALL = 2, 500_000_000
SEED = bytes(range(32))
GIB = 2**30
OPTIMIZER = OptimizerConfig(learning_rate=0.0003, total_steps=1000, warmup_steps=10)


def llama(
    vocab: int, width: int, layers: int, heads: int, kv_heads: int, ffn: int, *, tied: bool
) -> ModelConfig:
    """A decoder of these sizes."""
    return ModelConfig(
        vocab_size=vocab, width=width, num_layers=layers, num_heads=heads, num_kv_heads=kv_heads,
        ffn_width=ffn, sequence_length=TOKENS, tied_head=tied,
    )  # fmt: skip


MODELS = {  # shapes of SmolLM 135M and 360M, and of TinyLlama 1.1B
    "tiny": llama(256, 64, 2, 4, 2, 128, tied=True),
    "135M": llama(49_152, 576, 30, 9, 3, 1536, tied=True),
    "360M": llama(49_152, 960, 32, 15, 5, 2560, tied=True),
    "1.1B": llama(32_000, 2048, 22, 32, 4, 5632, tied=False),
}


class Device:
    """The clock and the memory of one device."""

    def __init__(self, name: str) -> None:
        self.name, self.is_gpu = name, torch.device(name).type == "cuda"

    def seconds(self, work: Callable[[], object]) -> float:
        """How long some work takes, to its end on the device."""
        self._wait()
        began = time.perf_counter()
        work()
        self._wait()
        return time.perf_counter() - began

    def _wait(self) -> None:
        if self.is_gpu:
            torch.cuda.synchronize()

    def clear(self) -> None:
        """Give back memory that nothing refers to."""
        gc.collect()
        if self.is_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak(self) -> float | None:
        """GiB, the most since `clear`; of a GPU only."""
        return round(torch.cuda.max_memory_allocated() / GIB, 2) if self.is_gpu else None


def items_of(model: ModelConfig, step: int) -> dict[ItemNumber, UnitInputs]:
    """The items of a step."""
    generator = torch.Generator().manual_seed(step)
    shape = (ROWS, TOKENS + 1)
    return {
        ItemNumber(number): UnitInputs(torch.randint(model.vocab_size, shape, generator=generator))
        for number in range(step * ITEMS, (step + 1) * ITEMS)
    }


def plain(model: ModelConfig, device: Device, num_steps: int) -> dict[str, Any]:
    """The loop without any of our machinery."""
    device.clear()
    decoder = StageModel(model, whole_model(model))
    shapes = parameter_shapes(model, whole_model(model))
    weights = {
        name: torch.randn(shape, device=device.name).mul_(0.02)
        if len(shape) == 2
        else torch.ones(shape, device=device.name)
        for name, shape in shapes.items()
    }
    decoder.load_state_dict(weights, assign=True)
    decoder.to_device(torch.device(device.name))
    for parameter in decoder.parameters():
        parameter.requires_grad_()
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=OPTIMIZER.learning_rate)

    def step(number: int) -> None:
        for inputs in items_of(model, number).values():
            assert inputs.rows_RT is not None
            rows_RT = inputs.rows_RT.to(device.name)
            logits_RTV = decoder(rows_RT[:, :-1])
            loss = functional.cross_entropy(logits_RTV.flatten(0, 1), rows_RT[:, 1:].flatten())
            (loss / ITEMS).backward()
        clip_grad_norm_(decoder.parameters(), OPTIMIZER.clip_norm)
        optimizer.step()
        optimizer.zero_grad()

    found = {"plain, s": steps_of(device, step, num_steps), "plain, GiB": device.peak()}
    if device.is_gpu:
        torch.backends.cuda.matmul.allow_tf32 = True
        found["plain TF32, s"] = steps_of(device, step, num_steps)
        torch.backends.cuda.matmul.allow_tf32 = False
    return found


def steps_of(device: Device, step: Callable[[int], object], num_steps: int) -> float:
    """Median seconds of a step."""
    taken = [device.seconds(lambda n=n: step(n)) for n in range(WARM + num_steps)]
    return round(statistics.median(taken[WARM:]), 4)


def ours(model: ModelConfig, device: Device, num_steps: int) -> dict[str, Any]:
    """The steps of a replica, and what else its round takes."""
    device.clear()
    began = time.perf_counter()
    stage = Stage(model, whole_model(model), OPTIMIZER, device=device.name)
    found: dict[str, Any] = {"initial weights, s": round(time.perf_counter() - began, 1)}
    replica = Replica(stage)
    replica.start(0)
    for name, seed in ("ours, s", SEED), ("untraced, s", b""):
        step = partial(lambda seed, number: replica.step(items_of(model, number), seed), seed)
        found[name] = steps_of(device, step, num_steps)
    found["ours, GiB"] = device.peak()
    average = torch.randn(stage.num_parameters, device=device.name).mul_(0.001)
    found["update, s"] = round(device.seconds(lambda: stage.apply([average], 10**9)), 4)
    if stage.num_parameters <= SMALL:
        codec, difference = LocalCodec("seeded4"), replica.difference()
        found["shard, s"] = round(device.seconds(lambda: codec.shard(difference, SEED)), 2)
        found["root, s"] = round(device.seconds(stage.roots), 2)
    return found


def measured(name: str, device: Device, num_steps: int) -> dict[str, Any]:
    """All figures of one model."""
    model, tokens = MODELS[name], ITEMS * ROWS * TOKENS
    # First the loop: a stage on a GPU changes torch's settings for the whole process.
    found = plain(model, device, num_steps)
    found |= ours(model, device, num_steps)
    planned = stage_memory(model, whole_model(model), ROWS).total() / GIB
    flops = ITEMS * item_flops(model, whole_model(model), ROWS)
    return {
        "model": name,
        "parameters": num_parameters(model, whole_model(model)),
        "ours, tokens/s": round(tokens / found["ours, s"]),
        "plain, tokens/s": round(tokens / found["plain, s"]),
        "ours / plain": round(found["plain, s"] / found["ours, s"], 3),
        "ours, TFLOP/s": round(flops / found["ours, s"] / 1e12, 2),
        "planned, GiB": round(planned, 2),
    } | found


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--model", choices=MODELS, default="135M")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    options = parsed(parser, minutes=30, model="tiny", steps=2)
    set_threads(options.threads)
    with limit(options.minutes, "model_throughput"):
        found = measured(options.model, Device(options.device), options.steps)
    print(markdown([{"": name, "found": value} for name, value in found.items()]))
    place = device_class(torch.device(options.device))
    print(json.dumps(found | about(steps=options.steps, device=place)))


if __name__ == "__main__":
    main()
