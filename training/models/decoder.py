"""What a stage computes: a run of Llama decoder layers, with embedding and head at the ends.

Invariant: attribute names and layouts are those of transformers' LlamaForCausalLM, so a parameter
has one name here, in a checkpoint and in an exported folder; a stage holds the layers of its slice
under their numbers in the whole model. fp32 throughout; dropout is 0.
Sources: Touvron et al. 2023 (Llama), Zhang and Sennrich 2019 (RMSNorm), Su et al. 2021 (rotary
positions, the half-rotation layout), Shazeer 2020 (SwiGLU), Ainslie et al. 2023 (grouped queries).

Shapes: R = rows of the unit, T = tokens of a row, D = model width, H = heads, G = key heads,
C = width of a head, V = vocabulary.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from training.config import ModelConfig, StageSlice, holds_embedding, shares_embedding


def rotary_tables(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every position, each (T, C), fp32."""
    half = torch.arange(0, config.head_width, 2, dtype=torch.float64) / config.head_width
    angles = torch.outer(
        torch.arange(config.sequence_length, dtype=torch.float64), config.rope_theta**-half
    )
    angles_TC = torch.cat((angles, angles), dim=-1)
    return angles_TC.cos().float(), angles_TC.sin().float()


def rotate(x_RHTC: Tensor, cos_TC: Tensor, sin_TC: Tensor) -> Tensor:
    """Turn each pair (c, c + C/2) of a head by its position's angle."""
    first, second = x_RHTC.chunk(2, dim=-1)
    return x_RHTC * cos_TC + torch.cat((-second, first), dim=-1) * sin_TC


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
    """A matrix without bias. `nn.Linear` would draw values first, and import dynamo to do so."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_outputs, num_inputs, device="meta"))
        self.adapter_scale: float | None = None

    def adapt(self, rank: int, alpha: int) -> None:
        """Add (alpha / rank) B A to the matrix, for good (Hu et al. 2021)."""
        num_outputs, num_inputs = self.weight.shape
        self.lora_A, self.lora_B = Linear(num_inputs, rank), Linear(rank, num_outputs)
        self.adapter_scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) to (..., outputs)."""
        y = functional.linear(x, self.weight)
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


class Attention(nn.Module):
    """Causal grouped-query attention with rotary positions."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_width = config.head_width
        self.group = config.num_heads // config.num_kv_heads
        self.q_proj = Linear(config.width, config.width)
        self.k_proj = Linear(config.width, config.kv_width)
        self.v_proj = Linear(config.width, config.kv_width)
        self.o_proj = Linear(config.width, config.width)

    def _heads(self, x_RTD: Tensor) -> Tensor:
        rows, num_tokens, _ = x_RTD.shape
        return x_RTD.view(rows, num_tokens, -1, self.head_width).transpose(1, 2)

    def _to_all(self, x_RGTC: Tensor) -> Tensor:
        return x_RGTC.unsqueeze(2).expand(-1, -1, self.group, -1, -1).flatten(1, 2)

    def forward(self, x_RTD: Tensor, cos_TC: Tensor, sin_TC: Tensor) -> Tensor:
        """Mix of the values each token may see, (R, T, D)."""
        q_RHTC = rotate(self._heads(self.q_proj(x_RTD)), cos_TC, sin_TC)
        k_RGTC = rotate(self._heads(self.k_proj(x_RTD)), cos_TC, sin_TC)
        v_RGTC = self._heads(self.v_proj(x_RTD))
        is_grouped = self.group > 1
        if is_grouped and x_RTD.is_cuda:  # its fused fp32 attention takes no groups
            k_RGTC, v_RGTC, is_grouped = self._to_all(k_RGTC), self._to_all(v_RGTC), False
        mixed_RHTC = functional.scaled_dot_product_attention(
            q_RHTC, k_RGTC, v_RGTC, is_causal=True, enable_gqa=is_grouped
        )
        mixed: Tensor = self.o_proj(mixed_RHTC.transpose(1, 2).flatten(2))
        return mixed


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

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.width, config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.width, config.norm_eps)
        self.mlp = FeedForward(config)

    def forward(self, x_RTD: Tensor, cos_TC: Tensor, sin_TC: Tensor) -> Tensor:
        """(R, T, D)."""
        x_RTD = x_RTD + self.self_attn(self.input_layernorm(x_RTD), cos_TC, sin_TC)
        y_RTD: Tensor = x_RTD + self.mlp(self.post_attention_layernorm(x_RTD))
        return y_RTD


class _Body(nn.Module):
    # The `model.` of LlamaForCausalLM, cut to one stage.
    def __init__(self, config: ModelConfig, stage: StageSlice) -> None:
        super().__init__()
        is_shared = shares_embedding(config, stage)
        if holds_embedding(config, stage) and not is_shared:
            self.embed_tokens = Embedding(config.vocab_size, config.width)
        self.layers = nn.ModuleDict(
            {
                str(number): DecoderLayer(config)
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
        self.cos_TC, self.sin_TC = rotary_tables(config)

    def to_device(self, device: torch.device) -> None:
        """Move the rotary tables; parameters are bound on their device."""
        self.cos_TC, self.sin_TC = self.cos_TC.to(device), self.sin_TC.to(device)

    def forward(self, x: Tensor) -> Tensor:
        """One pass through the stage.

        Args:
            x: Tokens (R, T) int64 on a stage with the embedding, else activations (R, T, D).

        Returns:
            Logits (R, T, V) on a stage with the head, else activations (R, T, D).
        """
        x_RTD: Tensor = self.model.embed_tokens(x) if self.stage.has_embedding else x
        num_tokens = x_RTD.shape[1]
        cos_TC, sin_TC = self.cos_TC[:num_tokens], self.sin_TC[:num_tokens]
        for layer in self.model.layers.values():
            x_RTD = layer(x_RTD, cos_TC, sin_TC)
        if not self.stage.has_head:
            return x_RTD
        x_RTD = self.model.norm(x_RTD)
        if self.tied:
            return functional.linear(x_RTD, self.model.embed_tokens.weight)
        logits_RTV: Tensor = self.lm_head(x_RTD)
        return logits_RTV
