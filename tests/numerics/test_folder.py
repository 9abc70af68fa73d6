"""Does `transformers` open what we write, and do we go on with what it wrote?"""

import json
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
)

from contracts.terms import errors
from contracts.terms.encoding import encode
from contracts.terms.ids import Digest
from contracts.terms.messages import AdapterSpec
from tests.numerics.families import PLAIN, SAMPLES, SCALING, apart, drawn, filled, said
from tests.numerics.loop import items_of, rows_of, synthetic_corpus
from tests.numerics.plain import plain_losses
from tests.support.fakes.blobs import MemoryBlobs
from tests.support.weights import in_parts, weights_file
from training.config import ModelConfig, model_spec, slices_of, whole_model
from training.memory import num_parameters
from training.models.decoder import StageModel
from training.models.families import config_fields, model_config
from training.models.folder import beside_in, read_config, read_folder, write_folder
from training.models.initial import initial_weights
from training.models.parameters import EMBEDDING, model_shapes, parameter_shapes
from training.models.sources import BytesSource
from training.models.starting import starting_weights
from training.models.weights import (
    MAX_BESIDE_BYTES,
    decode_weights,
    merged,
    weights_source,
)
from training.recipes import micro

CONFIG = micro()
ALLOWED = 1e-4  # of the logits, and of the gradient of any parameter


class Counting(MemoryBlobs):
    """Blobs, and which of them were wanted."""

    def __init__(self, blobs: Mapping[Digest, bytes]) -> None:
        super().__init__(blobs)
        self.fetched: set[Digest] = set()

    def fetch(self, digest: Digest) -> bytes:
        """See `BlobSource.fetch`."""
        self.fetched.add(digest)
        return super().fetch(digest)


def saved(folder: Path, dtype: torch.dtype = torch.float32, **changed: Any) -> Any:
    """A small model that `transformers` made."""
    values: dict[str, Any] = {
        "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32,
        "initializer_range": 0.3,
    }  # fmt: skip
    torch.manual_seed(7)
    model: Any = LlamaForCausalLM(LlamaConfig(**(values | changed)))
    model.to(dtype).save_pretrained(folder, max_shard_size=changed.get("shard", "1GB"))
    return model


def altered(folder: Path, **changed: Any) -> Path:
    config = json.loads((folder / "config.json").read_text()) | changed
    (folder / "config.json").write_text(json.dumps(config))
    return folder


# -------------------------------------------------------------------------------- there and back


@pytest.mark.parametrize("name", SAMPLES)
def test_write_folder__opened_by_transformers__computes_what_we_do(
    tmp_path: Path, name: str
) -> None:
    config, weights = SAMPLES[name].config, drawn(SAMPLES[name].config)
    write_folder(tmp_path / "out", config, weights)

    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out")

    assert said(model.config) == said(SAMPLES[name].transformers_config())
    assert apart(config, weights, model).largest < ALLOWED
    assert read_folder(tmp_path / "out").config == config


@pytest.mark.parametrize("name", SAMPLES)
def test_read_folder__made_by_transformers__computes_what_it_does(
    tmp_path: Path, name: str
) -> None:
    model = filled(SAMPLES[name])
    model.save_pretrained(tmp_path / "given")

    found = read_folder(tmp_path / "given")
    write_folder(tmp_path / "out", found.config, found.weights, None, found.beside)

    assert found.config == SAMPLES[name].config
    assert apart(found.config, found.weights, model).largest < ALLOWED
    given, out = (tmp_path / folder / "config.json" for folder in ("given", "out"))
    assert given.read_bytes() == out.read_bytes()


@pytest.mark.parametrize(
    ("name", "field"),
    [(name, field) for name, sample in SAMPLES.items() for field in PLAIN if field in sample.ours],
)
def test_apart__without_a_feature_of_the_family__far(name: str, field: str) -> None:
    sample, changed = SAMPLES[name], {field: PLAIN[field]}
    if field == "window":
        changed["full_layers"] = ()

    assert (
        apart(replace(sample.config, **changed), drawn(sample.config), filled(sample)).logits > 0.01
    )


@pytest.mark.parametrize(
    ("tied", "dtype"), [(False, torch.float32), (True, torch.bfloat16), (False, torch.float16)]
)
def test_read_folder__made_by_transformers__gives_its_logits(
    tmp_path: Path, tied: bool, dtype: torch.dtype
) -> None:
    saved(tmp_path, dtype, tie_word_embeddings=tied, rope_theta=5000.0)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)

    found = read_folder(tmp_path)

    assert (found.config.rope_theta, found.config.tied_head) == (5000, tied)
    assert apart(found.config, found.weights, model).largest < ALLOWED


def test_read_folder__weights_in_several_files__are_all_read(tmp_path: Path) -> None:
    saved(tmp_path / "one")
    saved(tmp_path / "many", shard="20KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2

    one, many = read_folder(tmp_path / "one"), read_folder(tmp_path / "many")

    assert weights_file(one.weights) == weights_file(many.weights)


FULL, SLIDING = "full_attention", "sliding_attention"
PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Llama 3.2 1B": (
        {
            "model_type": "llama", "head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192,
            "max_position_embeddings": 131_072, "num_attention_heads": 32, "num_hidden_layers": 16,
            "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 500_000.0,
            "rope_scaling": {
                "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192, "rope_type": "llama3",
            },
            "tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": 128_256,
        },
        {"rope_factor": 32.0, "rope_theta": 500_000, "tied_head": True},
    ),
    "SmolLM2 135M, converted from GGUF": (
        {
            "model_type": "llama", "head_dim": 64, "hidden_size": 576, "intermediate_size": 1536,
            "max_position_embeddings": 8192, "num_attention_heads": 9, "num_hidden_layers": 30,
            "num_key_value_heads": 3, "rms_norm_eps": 9.999999747378752e-06,
            "rope_theta": 100_000.0, "tie_word_embeddings": True, "vocab_size": 49_152,
        },
        {"rope_theta": 100_000, "tied_head": True},
    ),
    "Qwen2.5 0.5B": (
        {
            "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864,
            "max_position_embeddings": 32_768, "max_window_layers": 24, "num_attention_heads": 14,
            "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
            "rope_theta": 1_000_000.0, "sliding_window": 32_768, "tie_word_embeddings": True,
            "use_mrope": False, "use_sliding_window": False, "vocab_size": 151_936,
        },
        {"qkv_bias": True, "tied_head": True, "rope_theta": 1_000_000},
    ),
    "Qwen3 0.6B": (
        {
            "model_type": "qwen3", "attention_bias": False, "head_dim": 128, "hidden_size": 1024,
            "intermediate_size": 3072, "max_position_embeddings": 40_960, "max_window_layers": 28,
            "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
            "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1_000_000,
            "sliding_window": None, "tie_word_embeddings": True, "use_sliding_window": False,
            "vocab_size": 151_936,
        },
        {"qk_norm": True, "head_dim": 128, "tied_head": True, "rope_theta": 1_000_000},
    ),
    "Mistral 7B": (
        {
            "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14_336,
            "max_position_embeddings": 32_768, "num_attention_heads": 32, "num_hidden_layers": 32,
            "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10_000.0,
            "sliding_window": 4096, "tie_word_embeddings": False, "vocab_size": 32_000,
        },
        {"window": 4096},
    ),
    "SmolLM3 3B": (
        {
            "model_type": "smollm3", "attention_bias": False, "hidden_size": 2048,
            "intermediate_size": 11_008, "max_position_embeddings": 65_536,
            "max_window_layers": 28, "mlp_bias": False, "no_rope_layer_interval": 4,
            "num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 4,
            "pretraining_tp": 2, "rms_norm_eps": 1e-06, "rope_scaling": None,
            "rope_theta": 5_000_000.0, "sliding_window": None, "use_sliding_window": False,
            "vocab_size": 128_256,
        },
        {"unrotated_layers": tuple(range(3, 36, 4)), "tied_head": True, "rope_theta": 5_000_000},
    ),
}  # fmt: skip
"""Shapes of well-known models in the words of version 4, and what of each is no plain Llama."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_model_config__written_by_version_4__what_version_5_makes_of_it(name: str) -> None:
    raw, wanted = PUBLISHED[name]

    found = model_config(raw, name)

    plain = {each.name: each.default for each in fields(ModelConfig) if each.default != MISSING}
    assert {key: getattr(found, key) for key in plain} == plain | wanted | {
        "norm_eps": round(raw["rms_norm_eps"], 12)
    }
    theirs: Any = AutoConfig.for_model(**raw)
    assert model_config(theirs.to_dict(), name) == found
    assert model_config(config_fields(found), name) == found


def test_write_folder__bytes_as_tokens__tokenizer_gives_the_bytes(tmp_path: Path) -> None:
    write_folder(tmp_path / "out", CONFIG.model, drawn(CONFIG.model))
    text = "def f(x):\n\treturn 'caf\u00e9' * 2  # \U0001f600\r\n"

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")

    assert tokenizer(text)["input_ids"] == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text


def test_training__from_a_folder_of_transformers__starts_at_its_loss_and_goes_on(
    tmp_path: Path,
) -> None:
    model = saved(tmp_path)
    found = read_folder(tmp_path)
    config = replace(micro(num_steps=4), model=found.config)
    rows = rows_of(config, synthetic_corpus())
    weights = {name: torch.from_numpy(value.copy()) for name, value in found.weights.items()}

    losses = plain_losses(config, rows, weights=weights)

    units = map(rows.load, items_of(config, 1))
    batch = torch.tensor([list(row) for unit in units for row in unit])
    with torch.no_grad():
        logits = model(batch[:, :-1]).logits
    first = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
    assert losses[0] == pytest.approx(float(first), rel=1e-5)
    assert losses[-1] < losses[0]


# ------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"model_type": "mixtral"}, "model_type is 'mixtral', only llama, mistral, qwen2"),
        ({"model_type": None}, "model_type is None"),
        ({"model_type": "mistral"}, "only MistralForCausalLM is known"),
        ({"num_local_experts": 8}, "num_local_experts is 8: mixtures of experts are not computed"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0: soft caps"),
        ({"sliding_window": 16}, "sliding_window is 16, and no llama has that"),
        ({"no_rope_layers": [1, 0, 1]}, "no_rope_layers is .* and no llama has that"),
        ({"layer_types": ["chunked_attention"] * 3}, "layer_types is .*, only full_attention and"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attention_bias": True}, "attention_bias is True: biases of o_proj are not computed"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"attention_dropout": 0.1}, "attention_dropout is 0.1"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor of its pos"),
        (
            {"rope_scaling": {"rope_type": "llama3", **SCALING, "high_freq_factor": 0.5}},
            "rope_low_factor above 0 and below rope_high_factor",
        ),
        (
            {
                "rope_scaling": {
                    **SCALING,
                    "type": "llama3",
                    "original_max_position_embeddings": 8.0,
                }
            },
            "original_max_position_embeddings is 8.0, a whole number",
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "differ from layer to"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "scaled .'linear'."),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "scaled .'yarn'."),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "part of each"),
        ({"rope_parameters": {"rope_theta": 1234.5}}, "rope_theta is 1234.5"),
        ({"rope_parameters": {"rope_theta": float("nan")}}, "rope_theta is nan"),
        ({"rope_parameters": "llama3"}, "rope_parameters is 'llama3'"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear'"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings is 'false'"),
        ({"rms_norm_eps": "1e-5"}, "rms_norm_eps is '1e-5'"),
        ({"dtype": "float64"}, "dtype is 'float64', only float32, float16, bfloat16"),
    ],
)
def test_read_config__what_we_do_not_compute__refused_by_name(
    tmp_path: Path, changed: dict[str, Any], problem: str
) -> None:
    saved(tmp_path)

    with pytest.raises(errors.Refused, match=problem):
        read_config(altered(tmp_path, **changed))


@pytest.mark.parametrize(
    ("name", "value"),
    [("hidden_size", None), ("vocab_size", "256"), ("num_hidden_layers", 2.0), ("width", 1)],
)
def test_read_config__size_missing_or_no_number__malformed(
    tmp_path: Path, name: str, value: object
) -> None:
    saved(tmp_path)
    changed = {name: value} if name != "width" else {"intermediate_size": True}

    with pytest.raises(errors.Malformed, match="a whole number is needed"):
        read_config(altered(tmp_path, **changed))


@pytest.mark.parametrize(
    ("name", "changed", "error", "problem"),
    [
        ("Qwen2.5 0.5B", {"layer_types": [SLIDING] * 24}, errors.Malformed, "the window is 0"),
        ("Qwen2.5 0.5B", {"layer_types": [FULL] * 2}, errors.Malformed, "there are 24 layers"),
        ("Qwen3 0.6B", {"attention_bias": True}, errors.Refused, "biases of o_proj"),
        ("Mistral 7B", {"layer_types": [FULL] * 32}, errors.Refused, "no mistral has that"),
        ("Mistral 7B", {"sliding_window": 0}, errors.Refused, "sliding_window is 0"),
        ("Mistral 7B", {"sliding_window": 8.0}, errors.Malformed, "sliding_window is 8.0"),
        ("SmolLM3 3B", {"no_rope_layers": [1, 0]}, errors.Malformed, "no_rope_layers is"),
        ("SmolLM3 3B", {"num_hidden_layers": 10**12}, errors.Malformed, "at most 1024"),
    ],
)
def test_model_config__fields_of_a_family_that_do_not_fit__refused_by_name(
    name: str, changed: dict[str, Any], error: type[Exception], problem: str
) -> None:
    with pytest.raises(error, match=problem):
        model_config(PUBLISHED[name][0] | changed, name)


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
WEIGHTS = "model.safetensors"
Spoil = Callable[[Path], object]


def writing(name: str, content: str) -> Spoil:
    return lambda folder: (folder / name).write_text(content)


def cut_to(end: int) -> Spoil:
    return lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:end])


def without_weights(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")


def indexed(file: str) -> Spoil:
    """The index says that all weights are in this file."""

    def spoil(folder: Path) -> None:
        without_weights(folder)
        names = parameter_shapes(read_config(folder), whole_model(read_config(folder)))
        index = {"weight_map": dict.fromkeys(names, file)}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    return spoil


def with_a_link_to_nothing(folder: Path) -> None:
    path = folder / WEIGHTS
    path.unlink()
    path.symlink_to("../.git/annex/objects/x/y/SHA256E-s1--0f/SHA256E-s1--0f")


def with_a_link_out(folder: Path) -> None:
    (folder.parent / "secret").write_text("of the poster")
    (folder / "README.md").symlink_to("../secret")


@pytest.mark.parametrize(
    ("spoil", "error", "words"),
    [
        (without_weights, errors.NotFound, "pickled weights are never read"),
        (partial(altered, intermediate_size=64), errors.Malformed, "has shape"),
        (partial(altered, num_hidden_layers=4), errors.Malformed, r"no tensor model\.layers\.3"),
        (cut_to(-1), errors.Malformed, "no safetensors file: it ends before .* cut, download it"),
        (cut_to(100), errors.Malformed, "ends in its head, at byte 100: it was cut, download"),
        (
            writing("config.json", '{"model_type": "lla'),
            errors.Malformed,
            "config.json is JSON that ends early",
        ),
        (
            writing(WEIGHTS, LFS),
            errors.Malformed,
            "safetensors is a Git LFS .*: run `git lfs pull`",
        ),
        (
            writing("generation_config.json", LFS),
            errors.Malformed,
            "generation_config.json is a Git LFS pointer",
        ),
        (
            writing("chat_template.jinja", "<!doctype html><title>404</title>"),
            errors.Malformed,
            "chat_template.jinja is an HTML page",
        ),
        (with_a_link_to_nothing, errors.NotFound, "is not here: run `git annex get`"),
        (
            indexed("model-00001-of-00002.safetensors"),
            errors.NotFound,
            "there is no .*00001-of-00002.safetensors.*: download it",
        ),
        (
            writing("vocab.txt", "much " * 2**23),
            errors.TooLarge,
            "move .*/vocab.txt out of the folder",
        ),
        (with_a_link_out, errors.Refused, "README.md is a link out of the folder"),
        (
            writing("tokenizer_config.json", '{"auto_map": {"AutoTokenizer": "a.B"}}'),
            errors.Refused,
            "auto_map in .*tokenizer_config.json names programs",
        ),
        (indexed(f"../{WEIGHTS}"), errors.Malformed, "names no file of the folder"),
        (writing("config.json", "{]"), errors.Malformed, "no JSON"),
        (shutil.rmtree, errors.NotFound, "there is no folder"),
    ],
)
def test_read_folder__files_that_do_not_fit__typed_refusal(
    tmp_path: Path, spoil: Spoil, error: type[Exception], words: str
) -> None:
    saved(tmp_path / "model")
    spoil(tmp_path / "model")

    with pytest.raises(error, match=words):
        read_folder(tmp_path / "model")


def test_write_folder__there_is_one_or_tensors_are_missing__nothing_is_written(
    tmp_path: Path,
) -> None:
    weights = drawn(CONFIG.model)
    write_folder(tmp_path / "out", CONFIG.model, weights)

    with pytest.raises(errors.Conflict, match="there already"):
        write_folder(tmp_path / "out", CONFIG.model, weights)
    with pytest.raises(errors.Malformed, match="not those of the whole model"):
        write_folder(tmp_path / "new", CONFIG.model, dict(list(weights.items())[1:]))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_write_folder__stages_of_a_tied_model__is_the_folder_of_the_whole(tmp_path: Path) -> None:
    tied = replace(CONFIG.model, tied_head=True)
    weights = drawn(tied)
    pieces = [
        {name: weights[name] for name in parameter_shapes(tied, stage)}
        for stage in slices_of(tied, (1, 2))
    ]

    whole, differing = merged(pieces)
    write_folder(tmp_path / "out", tied, whole)
    found = read_folder(tmp_path / "out")

    assert sum(EMBEDDING in piece for piece in pieces) == 2
    assert differing == ()
    assert found.config.tied_head and set(found.weights) == set(weights)
    assert weights_file(found.weights) == weights_file(weights)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_write_folder__rows_longer_than_the_context__only_the_context_is_raised(
    tmp_path: Path, dtype: str
) -> None:
    saved(tmp_path / "given", getattr(torch, dtype))
    found = read_folder(tmp_path / "given")
    longer = replace(found.config, sequence_length=100)
    weights = {name: values + np.float32(1 / 3) for name, values in found.weights.items()}

    write_folder(tmp_path / "out", longer, weights, None, found.beside)

    given, out = (json.loads((tmp_path / n / "config.json").read_text()) for n in ("given", "out"))
    assert out == given | {"max_position_embeddings": 100}
    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    for name, values in weights.items():
        assert torch.equal(opened[name], torch.from_numpy(values).to(getattr(torch, dtype)))


def test_beside__of_another_model_or_with_a_program__refused(tmp_path: Path) -> None:
    saved(tmp_path / "given")
    found = read_folder(tmp_path / "given")
    other = replace(found.config, rope_theta=5000)
    forged = weights_source(found.weights, encode({"config.json": b"{}", "../a.json": b""}))

    with pytest.raises(errors.Malformed, match="is of another model"):
        write_folder(tmp_path / "out", other, found.weights, None, found.beside)
    with pytest.raises(errors.Malformed, match="carries what is no file of a model"):
        beside_in(forged, what="the start")
    with pytest.raises(errors.Malformed, match="bytes beside its weights"):
        beside_in(weights_source(found.weights, bytes(MAX_BESIDE_BYTES + 1)), what="the start")
    assert beside_in(weights_source(found.weights), what="the start") == {}


def test_merged__copies_differ__the_first_is_taken_and_it_is_said() -> None:
    weights = drawn(CONFIG.model)
    other = {EMBEDDING: weights[EMBEDDING] + 1}

    whole, differing = merged([weights, other])

    assert differing == (EMBEDDING,)
    assert np.array_equal(whole[EMBEDDING], weights[EMBEDDING])


# ------------------------------------------------------------------------- blobs and their slices


def test_parameter_shapes__module__has_these_names_shapes_and_order() -> None:
    adapter = AdapterSpec(rank=3, alpha=1, targets=("down_proj", "k_proj", "q_proj"))
    configs = [sample.config for sample in SAMPLES.values()]
    for config in (*configs, *(replace(each, adapter=adapter) for each in configs)):
        stages = [whole_model(config)]
        stages += slices_of(config, (1, config.num_layers))
        for stage in stages:
            shapes = parameter_shapes(config, stage)
            built = list(StageModel(config, stage).named_parameters())
            trained = [(name, tuple(p.shape)) for name, p in built if p.requires_grad]
            others = {name: tuple(p.shape) for name, p in built if not p.requires_grad}
            assert trained == list(shapes.items())
            assert others == ({} if config.adapter is None else model_shapes(config, stage))
            assert sum(map(math.prod, shapes.values())) == num_parameters(config, stage)


def test_initial_weights__biases_and_norms__are_0_and_1() -> None:
    for name in ("Qwen2", "Qwen3"):
        config = SAMPLES[name].config
        first = initial_weights(config, whole_model(config))
        vectors = {key: value for key, value in first.items() if value.dim() == 1}
        assert any("self_attn" in key for key in vectors)
        for key, value in vectors.items():
            assert torch.equal(value, torch.full_like(value, float(not key.endswith(".bias"))))


def test_starting_weights__a_blob__each_stage_gets_its_slice() -> None:
    weights = drawn(CONFIG.model)
    name, blobs = in_parts(weights_file(weights))
    spec = model_spec(CONFIG.model, weights=name)

    parts = [
        starting_weights(spec, CONFIG.model, stage, MemoryBlobs(blobs))
        for stage in slices_of(CONFIG.model, (1, 2))
    ]

    joined = {name: value for part in parts for name, value in part.items()}
    assert list(joined) == list(weights)
    assert all(np.array_equal(joined[name].numpy(), weights[name]) for name in weights)


def test_starting_weights__a_blob_with_a_tied_head__both_ends_start_from_the_one_matrix() -> None:
    tied = replace(CONFIG.model, tied_head=True)
    weights = drawn(tied)
    name, blobs = in_parts(weights_file(weights))
    spec = model_spec(tied, weights=name)

    first, last = (
        starting_weights(spec, tied, stage, MemoryBlobs(blobs)) for stage in slices_of(tied, (1, 2))
    )

    assert torch.equal(first[EMBEDDING], last[EMBEDDING])
    assert np.array_equal(last[EMBEDDING].numpy(), weights[EMBEDDING])


def test_starting_weights__other_bytes_are_served__refused() -> None:
    name, blobs = in_parts(weights_file(drawn(CONFIG.model)))
    spec = model_spec(CONFIG.model, weights=name)

    for part in blobs:  # the index, and each of its parts
        forged = MemoryBlobs(blobs | {part: blobs[part][:-1] + b"!"})
        with pytest.raises(errors.WrongBytes):
            starting_weights(spec, CONFIG.model, whole_model(CONFIG.model), forged)


def test_starting_weights__a_stage__fetches_the_parts_of_its_own_tensors_alone() -> None:
    name, blobs = in_parts(weights_file(drawn(CONFIG.model)))
    spec, first = model_spec(CONFIG.model, weights=name), slices_of(CONFIG.model, (1, 2))[0]
    source = Counting(blobs)

    starting_weights(spec, CONFIG.model, first, source)

    assert name in source.fetched and len(source.fetched) < len(blobs)


def test_decode_weights__not_finite__refused_by_name() -> None:
    weights = drawn(CONFIG.model)
    weights["model.norm.weight"][3] = np.nan

    with pytest.raises(errors.NotFinite, match=r"tensor model\.norm\.weight"):
        decode_weights(
            BytesSource(weights_file(weights)),
            parameter_shapes(CONFIG.model, whole_model(CONFIG.model)),
            what="a blob",
        )


def test_write_weights__same_tensors_in_another_order__are_the_bytes_of_safetensors() -> None:
    weights = drawn(CONFIG.model)

    assert weights_file(weights) == weights_file(dict(reversed(weights.items())))
    assert weights_file(weights) == save(weights, metadata={"format": "pt"})
