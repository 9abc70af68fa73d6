"""What the same job computes without any of our machinery: one process, full batch, torch's AdamW.

Independent by construction: of `training` it imports the configuration, the data and the initial
weights, nothing else. The model is written again, with torch's functions; the learning rate is
computed again, with `math.cos`. `python -m tests.numerics.plain --help` runs it on a signed job.

Shapes: B rows of the batch, T tokens, D width, C width of a head, V vocabulary.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from contracts.terms.errors import Malformed
from contracts.terms.items import ItemNumber
from contracts.terms.kinds import decode_message
from contracts.terms.messages import JobSpec
from tests.support.fakes.blobs import FolderBlobs
from training.config import ModelConfig, OptimizerConfig, TrainConfig, train_config, whole_model
from training.data.loading import UnitRows
from training.data.manifest import Manifest
from training.models.initial import initial_weights
from training.models.starting import starting_weights

MARK = 2**31
Weights = dict[str, Tensor]
OnStep = Callable[[int, float], None]


def plain_losses(
    config: TrainConfig,
    rows: UnitRows,
    *,
    weights: Weights | None = None,
    on_step: OnStep | None = None,
    is_marked: bool = False,
) -> list[float]:
    """Mean loss of each step's batch before its update, in nats per token that counts.

    Args:
        config: What the job signs.
        rows: Its data.
        weights: Where to start and what to train in place; the initial weights by default.
        on_step: Called after each step with its number and loss.
        is_marked: Whether only tokens with the highest of 32 bits count.
    """
    if weights is None:
        weights = initial_weights(config.model, whole_model(config.model))
    for weight in weights.values():
        weight.requires_grad_()
    optimizer = adamw(config.optimizer, weights)
    losses = []
    for step in range(1, config.num_steps + 1):
        batch = _batch(config, rows, step)
        losses.append(_step(config, optimizer, weights, batch, step, is_marked=is_marked))
        if on_step is not None:
            on_step(step, losses[-1])
    return losses


def adamw(config: OptimizerConfig, weights: Weights) -> torch.optim.AdamW:
    """AdamW that decays matrices."""
    matrices = [weight for weight in weights.values() if weight.dim() == 2]
    others = [weight for weight in weights.values() if weight.dim() != 2]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": config.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ],
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
    )


def _batch(config: TrainConfig, rows: UnitRows, step: int) -> Tensor:
    size = config.data.units_per_step
    items = map(ItemNumber, range((step - 1) * size, step * size))
    return tokens_of(rows, items).view(-1, config.model.sequence_length + 1)


def tokens_of(rows: UnitRows, items: Iterable[ItemNumber]) -> Tensor:
    """The tokens of items, row after row, int64."""
    joined = b"".join(row for item in items for row in rows.load(item))
    width = rows.token_bytes
    tokens = [joined[at : at + width] for at in range(0, len(joined), width)]
    return torch.tensor([int.from_bytes(token, "little") for token in tokens], dtype=torch.int64)


def _step(
    config: TrainConfig,
    optimizer: torch.optim.Optimizer,
    weights: Weights,
    batch_BT: Tensor,
    step: int,
    *,
    is_marked: bool,
) -> float:
    for group in optimizer.param_groups:
        group["lr"] = rate(config.optimizer, step)
    loss = mean_loss(config.model, weights, batch_BT, is_marked=is_marked)
    optimizer.zero_grad()
    loss.backward()
    if config.optimizer.clip_norm:
        torch.nn.utils.clip_grad_norm_(weights.values(), config.optimizer.clip_norm)
    optimizer.step()
    return float(loss.detach())


def mean_loss(
    config: ModelConfig, weights: Weights, batch_BT: Tensor, *, is_marked: bool = False
) -> Tensor:
    """Mean loss of the labels that count, (), in nats."""
    tokens_BT = batch_BT % MARK if is_marked else batch_BT
    counts_BT = batch_BT[:, 1:] >= MARK if is_marked else torch.ones_like(batch_BT[:, 1:]).bool()
    chosen = logits(config, weights, tokens_BT[:, :-1])[counts_BT]
    return functional.cross_entropy(chosen, tokens_BT[:, 1:][counts_BT])


def rate(config: OptimizerConfig, step: int) -> float:
    """Learning rate of step number `step`, the first being 1."""
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    if config.schedule == "constant":
        return config.learning_rate
    start = config.warmup_steps
    if config.schedule == "wsd":
        start = config.total_steps - round(config.total_steps * config.decay_ratio)
    progress = max(0, step - 1 - start) / (config.total_steps - start)
    left = (1 + math.cos(math.pi * progress)) / 2 if config.schedule == "cosine" else 1 - progress
    return config.learning_rate * (config.final_ratio + (1 - config.final_ratio) * left)


def logits(config: ModelConfig, weights: Weights, tokens_BT: Tensor) -> Tensor:
    """The decoder's forward pass, (B, T, V)."""
    x_BTD = functional.embedding(tokens_BT, weights["model.embed_tokens.weight"])
    for number in range(config.num_layers):
        x_BTD = _layer(config, weights, f"model.layers.{number}.", x_BTD)
    x_BTD = _norm(config, x_BTD, weights["model.norm.weight"])
    head = "model.embed_tokens.weight" if config.tied_head else "lm_head.weight"
    return functional.linear(x_BTD, weights[head])


def _layer(config: ModelConfig, weights: Weights, prefix: str, x_BTD: Tensor) -> Tensor:
    def project(name: str, x: Tensor) -> Tensor:
        return functional.linear(x, weights[f"{prefix}{name}_proj.weight"])

    normed = _norm(config, x_BTD, weights[prefix + "input_layernorm.weight"])
    query, key, value = (project(f"self_attn.{name}", normed) for name in "qkv")
    x_BTD = x_BTD + project("self_attn.o", _attention(config, query, key, value))
    normed = _norm(config, x_BTD, weights[prefix + "post_attention_layernorm.weight"])
    gated = functional.silu(project("mlp.gate", normed)) * project("mlp.up", normed)
    return x_BTD + project("mlp.down", gated)


def _norm(config: ModelConfig, x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, (config.width,), weight, config.norm_eps)


def _attention(config: ModelConfig, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    # Written out: scores, mask, softmax; each key head serves a group of query heads.
    num_tokens, width = query.shape[1], config.head_width
    group = config.num_heads // config.num_kv_heads
    future = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=query.device).triu(1)
    mixed = []
    for head in range(config.num_heads):
        q = _turn(config, query[..., head * width : (head + 1) * width])
        at = head // group * width
        k = _turn(config, key[..., at : at + width])
        scores = (q @ k.transpose(1, 2) / math.sqrt(width)).masked_fill(future, -math.inf)
        mixed.append(scores.softmax(-1) @ value[..., at : at + width])
    return torch.cat(mixed, dim=-1)


def _turn(config: ModelConfig, x_BTC: Tensor) -> Tensor:
    # Pairs (c, c + C/2) as complex numbers, turned by position x theta^(-2c/C).
    half = config.head_width // 2
    turns = config.rope_theta ** -(torch.arange(half, dtype=torch.float64) / half)
    angles = torch.outer(torch.arange(x_BTC.shape[1], dtype=torch.float64), turns)
    cos, sin = (each.float().to(x_BTC.device) for each in (angles.cos(), angles.sin()))
    real, imaginary = x_BTC[..., :half], x_BTC[..., half:]
    return torch.cat((real * cos - imaginary * sin, imaginary * cos + real * sin), dim=-1)


def greatest_difference(losses: list[float], reference: list[float]) -> float:
    """Largest relative difference of two curves at any step; inf if their lengths differ."""
    if len(losses) != len(reference):
        return math.inf
    return max(abs(a - b) / abs(b) for a, b in zip(losses, reference, strict=True))


def main(arguments: list[str] | None = None) -> None:
    """Run a signed job's math and write its losses as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.numerics.plain", description=__doc__)
    parser.add_argument("--job", type=Path, required=True, help="encoded JobSpec")
    parser.add_argument("--blobs", type=Path, required=True, help="folder of the job's blobs")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    spec = decode_message(options.job.read_bytes())
    if not isinstance(spec, JobSpec):
        raise Malformed(f"{options.job} holds a {spec.kind}, not a job")
    config = train_config(spec.model, spec.optimizer, spec.data, spec.batch)
    blobs = FolderBlobs(options.blobs)
    manifest = Manifest.decoded(blobs.fetch(spec.data.manifest))
    rows = UnitRows(manifest, config.data, config.model.sequence_length, blobs)

    def report(step: int, loss: float) -> None:
        print(f"plain step {step}: loss {loss:.6f}", file=sys.stderr, flush=True)

    weights = starting_weights(spec.model, config.model, whole_model(config.model), blobs)
    is_marked = spec.data.objective == "sft"
    losses = plain_losses(config, rows, weights=weights, on_step=report, is_marked=is_marked)
    options.out.write_text(json.dumps({"losses": losses}) + "\n")


if __name__ == "__main__":
    main()
