"""Is the priced work the published formula, and additive over stages?"""

from dataclasses import replace
from typing import Any

from contracts.terms.messages import AdapterSpec
from tests.support.local_jobs import of_local_steps
from training.config import slices_of, whole_model
from training.flops import forward_flops_per_token, item_flops, layer_matrix_parameters
from training.memory import (
    EVERY_STEP,
    MAX_GRAPHS,
    Footprint,
    num_parameters,
    peer_memory,
    stage_memory,
)
from training.recipes import micro, tiny_llama
from training.strategies.local.footprint import footprint


def local_steps(moments: str = "restart") -> Footprint:
    """Of a peer that takes them."""
    return footprint(of_local_steps(moments=moments)["local"])


def test_item_flops__llama_7b_shape__is_six_parameters_and_attention_per_token() -> None:
    # PaLM, appendix B: 6 N + 12 L H Q T per token; N without the embedding, a mere lookup.
    model = replace(
        micro().model,
        vocab_size=32_000,
        width=4096,
        num_layers=32,
        num_heads=32,
        num_kv_heads=32,
        ffn_width=11_008,
        sequence_length=2048,
    )
    matrices = 32 * layer_matrix_parameters(model) + 32_000 * 4096

    flops = item_flops(model, whole_model(model), rows_per_unit=1)

    assert matrices == 6_607_077_376
    assert flops == 2048 * (6 * matrices + 12 * 32 * 4096 * 2048)


ADAPTER = AdapterSpec(rank=4, alpha=8, targets=("down_proj", "q_proj"))


def test_item_flops__adapter__matrices_cost_their_forward_and_input_gradient() -> None:
    plain = micro().model
    model = replace(plain, adapter=ADAPTER)
    whole, tokens = whole_model(model), plain.sequence_length
    matrices = 2 * layer_matrix_parameters(plain) + plain.vocab_size * plain.width
    factors = 2 * 4 * (plain.ffn_width + plain.width + 2 * plain.width)

    flops = item_flops(model, whole, 1)

    assert num_parameters(model, whole) == factors
    assert flops == tokens * (4 * matrices + 6 * factors + 2 * 12 * plain.width * tokens)
    parts = [item_flops(model, stage, 1) for stage in slices_of(model, (1, 2))]
    assert sum(parts) == flops


def test_peer_memory__adapter__moments_and_gradient_are_of_that_alone() -> None:
    plain = tiny_llama().model
    model = replace(plain, adapter=ADAPTER)
    whole = whole_model(model)

    memory, before = stage_memory(model, whole, 4), stage_memory(plain, whole, 4)

    factors = 4 * num_parameters(model, whole)
    assert (memory.gradient, memory.moments) == (factors, 2 * factors)
    assert memory.weights == before.weights + factors
    saved = before.moments + before.gradient - 4 * factors
    assert memory.state == before.state - saved


def test_item_flops__demo_unit__is_this_number() -> None:
    config = tiny_llama()

    flops = item_flops(config.model, whole_model(config.model), config.data.rows_per_unit)

    per_token = 3 * (2 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512) + 4 * 128 * 256)
    assert flops == 3 * 4 * 128 * (per_token + 2 * 256 * 256) == 6_241_124_352


def test_item_flops__cut_into_stages__adds_up_to_the_whole() -> None:
    model = tiny_llama().model

    parts = [item_flops(model, stage, 4) for stage in slices_of(model, (1, 2, 3))]

    assert sum(parts) == item_flops(model, whole_model(model), 4)
    assert parts[0] == parts[1] < parts[2]  # the head works, the embedding looks up


def test_forward_flops__tied_head__costs_as_much_as_an_untied_one() -> None:
    model = micro().model
    tied = replace(model, tied_head=True)

    assert forward_flops_per_token(tied, whole_model(tied)) == forward_flops_per_token(
        model, whole_model(model)
    )


def test_flops_and_memory__wide_heads_norms_biases_and_a_window__are_counted() -> None:
    model = replace(micro().model, num_layers=1)  # width 32, four heads of 8, two for keys
    wide = replace(model, head_dim=16)
    whole = whole_model(model)

    def more(**changed: Any) -> tuple[int, int, int]:
        other = replace(wide, **changed)
        return (
            forward_flops_per_token(other, whole) - forward_flops_per_token(wide, whole),
            num_parameters(other, whole) - num_parameters(wide, whole),
            stage_memory(other, whole, 1).activations_per_unit
            - stage_memory(wide, whole, 1).activations_per_unit,
        )

    assert layer_matrix_parameters(wide) - layer_matrix_parameters(model) == 2 * 32 * (32 + 16)
    extra = forward_flops_per_token(wide, whole) - forward_flops_per_token(model, whole)
    assert extra == 2 * 2 * 32 * (32 + 16) + 4 * 32 * 32
    assert more(qkv_bias=True) == (0, 64 + 2 * 32, 0)
    assert more(qk_norm=True) == (0, 2 * 16, 4 * 32 * (2 * (64 + 32) + 4 + 2))
    assert more(window=8) == (0, 0, 4 * 32 * 64)
    assert more(window=32) == more(unrotated_layers=(0,)) == (0, 0, 0)


def test_num_parameters__tied_head_cut_off_from_the_embedding__counts_both_copies() -> None:
    tied = replace(micro().model, num_layers=2, tied_head=True)

    parts = [num_parameters(tied, stage) for stage in slices_of(tied, (1, 2))]

    whole = num_parameters(tied, whole_model(tied))
    assert sum(parts) == whole + tied.vocab_size * tied.width


def test_peer_memory__local_steps__replay_has_three_vectors_more_and_no_graph() -> None:
    model = micro().model
    whole = whole_model(model)
    vector = 4 * num_parameters(model, whole)

    def more(audits: bool) -> int:
        local, plain = (
            peer_memory(model, whole, 4, audits=audits, footprint=each)
            for each in (local_steps(), EVERY_STEP)
        )
        return local - plain

    assert more(audits=False) == 4 * vector
    memory = stage_memory(model, whole, 4)
    graph = memory.total(2) - memory.total(1)
    assert more(audits=True) == 7 * vector - graph  # moments and first weights of the replay


def test_peer_memory__sealed_moments__are_there_and_travel_and_are_compared() -> None:
    model = micro().model
    whole = whole_model(model)
    vector = 4 * num_parameters(model, whole)

    def more(audits: bool) -> int:
        mean, restart = (
            peer_memory(model, whole, 4, audits=audits, footprint=local_steps(each))
            for each in ("mean", "restart")
        )
        return mean - restart

    assert more(audits=False) == 4 * vector
    assert more(audits=True) == (4 + 2 * 5 + 2) * vector


def test_peer_memory__stage_that_waits_for_its_backward__has_room_for_all_graphs() -> None:
    model = tiny_llama().model
    first, middle, last = slices_of(model, (1, 2, 3))

    assert peer_memory(model, first, 4) == stage_memory(model, first, 4).total(MAX_GRAPHS)
    assert peer_memory(model, middle, 4) == stage_memory(model, middle, 4).total(MAX_GRAPHS)
    assert peer_memory(model, last, 4) == stage_memory(model, last, 4).total(1)
