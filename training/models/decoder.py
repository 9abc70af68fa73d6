"""What a stage computes: a run of decoder layers, with embedding and head at the ends.

Invariant: attribute names and layouts are those of transformers' LlamaForCausalLM and of the other
families in `families.py`, so a parameter has one name here, in a checkpoint and in an exported
folder; a stage holds the layers of its slice under their numbers in the whole model. fp32
throughout; dropout is 0.
Sources: Touvron et al. 2023 (Llama), Zhang and Sennrich 2019 (RMSNorm), Su et al. 2021 (rotary
positions, the half-rotation layout), Shazeer 2020 (SwiGLU), Ainslie et al. 2023 (grouped queries),
Grattafiori et al. 2024 (scaled positions), Jiang et al. 2023 (windows), Yang et al. 2024 and 2025
(biases; norms of queries and keys), Yang et al. 2025 (layers without positions).

Shapes: R = rows of the unit, T = tokens of a row, D = model width, H = heads, G = key heads,
C = width of a head, V = vocabulary, B = queries of a block, S = keys that a block may see.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.config import ModelConfig, StageSlice, holds_embedding, shares_embedding
from training.memory import WINDOW_BLOCK

_ALIGNED = 16  # rows of a mask that fused CUDA attention takes without a copy


def rotary_tables(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every position, each (T, C), fp32."""
    half = torch.arange(0, config.head_width, 2, dtype=torch.float64) / config.head_width
    turns = config.rope_theta**-half
    if config.rope_factor != 1:
        turns = _scaled(config, turns)
    angles = torch.outer(torch.arange(config.sequence_length, dtype=torch.float64), turns)
    angles_TC = torch.cat((angles, angles), dim=-1)
    return angles_TC.cos().float(), angles_TC.sin().float()


def _scaled(config: ModelConfig, turns: Tensor) -> Tensor:
    # `turns` in radians a token; see `ModelConfig`.
    low, high = config.rope_low_factor, config.rope_high_factor
    in_context = config.rope_context * turns / (2 * math.pi)
    kept = ((in_context - low) / (high - low)).clamp(0, 1)
    return kept * turns + (1 - kept) * turns / config.rope_factor


def rotate(x_RHTC: Tensor, cos_TC: Tensor, sin_TC: Tensor) -> Tensor:
    """Turn each pair (c, c + C/2) of a head by its position's angle."""
    first, second = x_RHTC.chunk(2, dim=-1)
    return x_RHTC * cos_TC + torch.cat((-second, first), dim=-1) * sin_TC


def window_mask(window: int) -> Tensor:
    """Which keys a block of queries sees: 0, else -inf; (B, S), fp32.

    The last B keys are those of the queries, before them are as many more as a window may reach.
    """
    reach = -(-(window - 1) // _ALIGNED) * _ALIGNED
    key_S = torch.arange(reach + WINDOW_BLOCK)
    query_B1 = key_S[reach:, None]
    is_seen_BS = (key_S <= query_B1) & (key_S > query_B1 - window)
    return torch.zeros(is_seen_BS.shape).masked_fill(~is_seen_BS, -math.inf)


class RMSNorm(nn.Module):
    """Scale each vector to root mean square 1, then by a learned weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, device="meta"))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`."""
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps))


class Linear(nn.Module):
    """A matrix. `nn.Linear` would draw values first, and import dynamo to do so."""

    def __init__(self, num_inputs: int, num_outputs: int, *, has_bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_outputs, num_inputs, device="meta"))
        self.bias = nn.Parameter(torch.empty(num_outputs, device="meta")) if has_bias else None
        self.adapter_scale: float | None = None

    def adapt(self, rank: int, alpha: int) -> None:
        """Add (alpha / rank) B A to the matrix, for good (Hu et al. 2021)."""
        num_outputs, num_inputs = self.weight.shape
        self.lora_A, self.lora_B = Linear(num_inputs, rank), Linear(rank, num_outputs)
        self.adapter_scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) to (..., outputs)."""
        y = functional.linear(x, self.weight, self.bias)
        if self.adapter_scale is not None:
            y.add_(self.lora_B(self.lora_A(x)), alpha=self.adapter_scale)
        return y


class Embedding(nn.Module):
    """A row of the matrix for each token."""

    def __init__(self, vocab_size: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, width, device="meta"))

    def forward(self, tokens_RT: Tensor) -> Tensor:
        """(R, T) int64 to (R, T, D)."""
        return functional.embedding(tokens_RT, self.weight)


class Tables(NamedTuple):
    """What depends on positions alone, so that all layers share it."""

    cos_TC: Tensor
    sin_TC: Tensor
    mask_BS: Tensor | None  # where rows are longer than the window, see `window_mask`


class Attention(nn.Module):
    """Causal grouped-query attention of one layer, with rotary positions or without."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.head_width = config.head_width
        self.group = config.num_heads // config.num_kv_heads
        self.window = config.window_of(layer)
        self.is_rotated = layer not in config.unrotated_layers
        self.q_proj = Linear(config.width, config.q_width, has_bias=config.qkv_bias)
        self.k_proj = Linear(config.width, config.kv_width, has_bias=config.qkv_bias)
        self.v_proj = Linear(config.width, config.kv_width, has_bias=config.qkv_bias)
        self.o_proj = Linear(config.q_width, config.width)
        self.q_norm = RMSNorm(config.head_width, config.norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(config.head_width, config.norm_eps) if config.qk_norm else None

    def _heads(self, x_RTD: Tensor) -> Tensor:
        rows, num_tokens, _ = x_RTD.shape
        return x_RTD.view(rows, num_tokens, -1, self.head_width).transpose(1, 2)

    def _to_all(self, x_RGTC: Tensor) -> Tensor:
        return x_RGTC.unsqueeze(2).expand(-1, -1, self.group, -1, -1).flatten(1, 2)

    def forward(self, x_RTD: Tensor, tables: Tables) -> Tensor:
        """Mix of the values each token may see, (R, T, D)."""
        q_RHTC, k_RGTC = self._heads(self.q_proj(x_RTD)), self._heads(self.k_proj(x_RTD))
        if self.q_norm is not None and self.k_norm is not None:
            q_RHTC, k_RGTC = self.q_norm(q_RHTC), self.k_norm(k_RGTC)
        if self.is_rotated:
            q_RHTC = rotate(q_RHTC, tables.cos_TC, tables.sin_TC)
            k_RGTC = rotate(k_RGTC, tables.cos_TC, tables.sin_TC)
        v_RGTC = self._heads(self.v_proj(x_RTD))
        is_grouped = self.group > 1
        if is_grouped and x_RTD.is_cuda:  # its fused fp32 attention takes no groups
            k_RGTC, v_RGTC, is_grouped = self._to_all(k_RGTC), self._to_all(v_RGTC), False
        if tables.mask_BS is not None and 0 < self.window < x_RTD.shape[1]:
            mixed_RTHC = _windowed(q_RHTC, k_RGTC, v_RGTC, tables.mask_BS, is_grouped=is_grouped)
        else:
            mixed_RTHC = functional.scaled_dot_product_attention(
                q_RHTC, k_RGTC, v_RGTC, is_causal=True, enable_gqa=is_grouped
            ).transpose(1, 2)
        mixed: Tensor = self.o_proj(mixed_RTHC.flatten(2))
        return mixed


def _windowed(
    q_RHTC: Tensor, k_RGTC: Tensor, v_RGTC: Tensor, mask_BS: Tensor, *, is_grouped: bool
) -> Tensor:
    """Attention block by block, each over the keys that it may see, (R, T, H, C)."""
    num_queries, num_keys = mask_BS.shape
    mixed = []
    for start in range(0, q_RHTC.shape[2], num_queries):
        q_RHBC = q_RHTC[:, :, start : start + num_queries]
        end, left_out = start + q_RHBC.shape[2], start + num_queries - num_keys
        first = max(0, left_out)
        seen_BS = mask_BS[: end - start, first - left_out : end - left_out]
        mixed_RHBC = functional.scaled_dot_product_attention(
            q_RHBC, k_RGTC[:, :, first:end], v_RGTC[:, :, first:end],
            attn_mask=seen_BS, enable_gqa=is_grouped,
        )  # fmt: skip
        mixed.append(mixed_RHBC.transpose(1, 2))
    return torch.cat(mixed, dim=1)


class FeedForward(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.width, config.ffn_width)
        self.up_proj = Linear(config.width, config.ffn_width)
        self.down_proj = Linear(config.ffn_width, config.width)

    def forward(self, x_RTD: Tensor) -> Tensor:
        """(R, T, D)."""
        y: Tensor = self.down_proj(functional.silu(self.gate_proj(x_RTD)) * self.up_proj(x_RTD))
        return y


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each on a normed copy and added back."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.width, config.norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.width, config.norm_eps)
        self.mlp = FeedForward(config)

    def forward(self, x_RTD: Tensor, tables: Tables) -> Tensor:
        """(R, T, D)."""
        x_RTD = x_RTD + self.self_attn(self.input_layernorm(x_RTD), tables)
        y_RTD: Tensor = x_RTD + self.mlp(self.post_attention_layernorm(x_RTD))
        return y_RTD


class _Body(nn.Module):
    # The `model.` of transformers, cut to one stage.
    def __init__(self, config: ModelConfig, stage: StageSlice) -> None:
        super().__init__()
        is_shared = shares_embedding(config, stage)
        if holds_embedding(config, stage) and not is_shared:
            self.embed_tokens = Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleDict(
            {
                str(number): DecoderLayer(config, number)
                for number in range(stage.first_layer, stage.end_layer)
            }
        )
        if stage.has_head:
            self.norm = RMSNorm(config.width, config.norm_eps)
        if is_shared:  # last: flat vectors end with what two stages share
            self.embed_tokens = Embedding(config.vocab_size, config.width)


class StageModel(nn.Module):
    """The decoder layers of one stage; parameters are on the meta device until a stage binds them.

    A tied head reads `model.embed_tokens.weight`; cut off from the embedding it has a copy of it.
    With an adapter all other parameters want no gradient.
    """

    def __init__(self, config: ModelConfig, stage: StageSlice) -> None:
        super().__init__()
        self.stage = stage
        self.tied = config.tied_head
        self.model = _Body(config, stage)
        if stage.has_head and not config.tied_head:
            self.lm_head = Linear(config.width, config.vocab_size)
        if (adapter := config.adapter) is not None:
            self.requires_grad_(False)
            for name, module in list(self.model.layers.named_modules()):
                if isinstance(module, Linear) and name.rpartition(".")[2] in adapter.targets:
                    module.adapt(adapter.rank, adapter.alpha)
        mask_BS = window_mask(config.window) if config.has_mask else None
        self.tables = Tables(*rotary_tables(config), mask_BS)

    def to_device(self, device: torch.device) -> None:
        """Move the tables; parameters are bound on their device."""
        cos_TC, sin_TC, mask_BS = self.tables
        mask_BS = None if mask_BS is None else mask_BS.to(device)
        self.tables = Tables(cos_TC.to(device), sin_TC.to(device), mask_BS)

    def forward(self, x: Tensor) -> Tensor:
        """One pass through the stage.

        Args:
            x: Tokens (R, T) int64 on a stage with the embedding, else activations (R, T, D).

        Returns:
            Logits (R, T, V) on a stage with the head, else activations (R, T, D).
        """
        x_RTD: Tensor = self.model.embed_tokens(x) if self.stage.has_embedding else x
        num_tokens = x_RTD.shape[1]
        cos_TC, sin_TC, mask_BS = self.tables
        tables = Tables(cos_TC[:num_tokens], sin_TC[:num_tokens], mask_BS)
        for layer in self.model.layers.values():
            x_RTD = layer(x_RTD, tables)
        if not self.stage.has_head:
            return x_RTD
        x_RTD = self.model.norm(x_RTD)
        if self.tied:
            return functional.linear(x_RTD, self.model.embed_tokens.weight)
        logits_RTV: Tensor = self.lm_head(x_RTD)
        return logits_RTV
