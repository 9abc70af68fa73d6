"""Does `transformers` open what we write, and do we go on with what it wrote?"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import save
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from contracts.terms import errors
from contracts.terms.encoding import encode
from contracts.terms.ids import Digest
from tests.numerics.loop import items_of, rows_of, synthetic_corpus
from tests.numerics.plain import plain_losses
from tests.support.fakes.blobs import MemoryBlobs
from tests.support.weights import in_parts, weights_file
from training.config import ModelConfig, model_spec, slices_of, whole_model
from training.models.decoder import StageModel
from training.models.folder import beside_in, read_config, read_folder, write_folder
from training.models.parameters import EMBEDDING, parameter_shapes
from training.models.sources import BytesSource
from training.models.starting import starting_weights
from training.models.weights import (
    MAX_BESIDE_BYTES,
    Weights,
    decode_weights,
    merged,
    weights_source,
)
from training.recipes import micro
from training.stages.stage import Stage

CONFIG = micro()
ALLOWED = 1e-4  # of any logit
SHAPES = [
    CONFIG.model,
    replace(CONFIG.model, tied_head=True, num_kv_heads=4, rope_theta=500_000, norm_eps=1e-6),
    replace(CONFIG.model, num_heads=2, num_kv_heads=1, vocab_size=300, num_layers=3),
]
IDS = ["grouped", "tied", "one key head"]


def drawn(config: ModelConfig) -> dict[str, NDArray[np.float32]]:
    """Weights of every parameter, norms included, that are no initial ones."""
    generator = np.random.default_rng(5)
    shapes = parameter_shapes(config, whole_model(config))
    return {
        name: (generator.standard_normal(shape) * 0.3 + (len(shape) == 1)).astype(np.float32)
        for name, shape in shapes.items()
    }


def our_logits(config: ModelConfig, weights: Weights, tokens_RT: Tensor) -> Tensor:
    stage = Stage(config, whole_model(config), CONFIG.optimizer)
    tensors = {name: torch.from_numpy(value) for name, value in weights.items()}
    stage.load(tensors | stage.moments(), 0)
    with torch.no_grad():
        logits_RTV: Tensor = stage._model(tokens_RT)
    return logits_RTV


class Counting(MemoryBlobs):
    """Blobs, and which of them were wanted."""

    def __init__(self, blobs: Mapping[Digest, bytes]) -> None:
        super().__init__(blobs)
        self.fetched: set[Digest] = set()

    def fetch(self, digest: Digest) -> bytes:
        """See `BlobSource.fetch`."""
        self.fetched.add(digest)
        return super().fetch(digest)


def tokens(config: ModelConfig) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    shape = (3, config.sequence_length)
    return torch.randint(config.vocab_size, shape, generator=generator)


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


@pytest.mark.parametrize("config", SHAPES, ids=IDS)
def test_write_folder__opened_by_transformers__gives_our_logits(
    tmp_path: Path, config: ModelConfig
) -> None:
    weights = drawn(config)
    write_folder(tmp_path / "out", config, weights)

    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "out")

    assert type(model) is LlamaForCausalLM
    with torch.no_grad():
        theirs = model(tokens(config)).logits
    assert float((our_logits(config, weights, tokens(config)) - theirs).abs().max()) < ALLOWED
    assert read_folder(tmp_path / "out").config == config


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
    with torch.no_grad():
        theirs = model(tokens(found.config)).logits
    ours = our_logits(found.config, found.weights, tokens(found.config))
    assert float((ours - theirs).abs().max()) < ALLOWED


def test_read_folder__weights_in_several_files__are_all_read(tmp_path: Path) -> None:
    saved(tmp_path / "one")
    saved(tmp_path / "many", shard="20KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2

    one, many = read_folder(tmp_path / "one"), read_folder(tmp_path / "many")

    assert weights_file(one.weights) == weights_file(many.weights)


def test_read_folder__version_4_fields__are_understood(tmp_path: Path) -> None:
    saved(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["rope_parameters"]
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"rope_theta": 2e4, "rope_scaling": None, "torch_dtype": "float32"})
    )

    assert read_config(tmp_path).rope_theta == 20_000


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
        ({"model_type": "mistral"}, "model_type is 'mistral'"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "architectures"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attention_bias": True}, "attention_bias is True: there are no biases"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"attention_dropout": 0.1}, "attention_dropout is 0.1"),
        ({"head_dim": 16}, "head_dim is 16"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "scaled .'llama3'."),
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
    for config in SHAPES:
        stages = [whole_model(config)]
        stages += slices_of(config, (1, config.num_layers))
        for stage in stages:
            built = StageModel(config, stage).named_parameters()
            assert [(name, tuple(p.shape)) for name, p in built] == list(
                parameter_shapes(config, stage).items()
            )


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
