"""Is the priced work the published formula, and additive over stages?"""

from dataclasses import replace

from training.config import even_slices, whole_model
from training.flops import forward_flops_per_token, layer_matrix_parameters, unit_flops
from training.memory import num_parameters, stage_memory
from training.recipes import micro, tiny_llama


def test_unit_flops__llama_7b_shape__is_six_parameters_and_attention_per_token() -> None:
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

    flops = unit_flops(model, whole_model(model), rows_per_unit=1)

    assert matrices == 6_607_077_376
    assert flops == 2048 * (6 * matrices + 12 * 32 * 4096 * 2048)


def test_unit_flops__demo_unit__is_this_number() -> None:
    config = tiny_llama()

    flops = unit_flops(config.model, whole_model(config.model), config.data.rows_per_unit)

    per_token = 3 * (2 * (2 * 256 * 256 + 2 * 256 * 128 + 3 * 256 * 512) + 4 * 128 * 256)
    assert flops == 3 * 4 * 128 * (per_token + 2 * 256 * 256) == 6_241_124_352


def test_unit_flops__cut_into_stages__adds_up_to_the_whole() -> None:
    model = tiny_llama().model

    parts = [unit_flops(model, stage, 4) for stage in even_slices(model, 3)]

    assert sum(parts) == unit_flops(model, whole_model(model), 4)
    assert parts[0] == parts[1] < parts[2]  # the head works, the embedding looks up


def test_forward_flops__tied_head__costs_as_much_as_an_untied_one() -> None:
    model = micro().model
    tied = replace(model, tied_head=True)

    assert forward_flops_per_token(tied, whole_model(tied)) == forward_flops_per_token(
        model, whole_model(model)
    )


def test_num_parameters__tied_head__counts_the_matrix_once() -> None:
    model = micro().model
    tied = replace(model, tied_head=True)

    saved = num_parameters(model, whole_model(model)) - num_parameters(tied, whole_model(tied))

    assert saved == model.vocab_size * model.width


def test_stage_memory__more_units_kept__grows_by_their_activations() -> None:
    config = tiny_llama()
    memory = stage_memory(config.model, whole_model(config.model), config.data.rows_per_unit)

    assert memory.weights == 4 * 1_902_336
    assert memory.moments == 2 * memory.weights
    assert memory.total(3) - memory.total(1) == 2 * memory.activations_per_unit


def test_stage_memory__cut_into_stages__state_adds_up() -> None:
    model = tiny_llama().model

    parts = [stage_memory(model, stage, 4) for stage in even_slices(model, 3)]

    assert sum(part.weights for part in parts) == 4 * num_parameters(model, whole_model(model))
    assert all(part.total() < stage_memory(model, whole_model(model), 4).total() for part in parts)
