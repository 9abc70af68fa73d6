"""Does a job file with a folder of `transformers` and a tokenizer become blobs that peers train?"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from contracts.terms.digest import blob_digest
from contracts.terms.errors import NotFound, Refused, TooLarge
from contracts.terms.ids import ZERO_DIGEST, Address, Digest, StageIndex
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixSeconds
from tallystick.sdk import job_spec as prepare_module
from tallystick.sdk.job_file import JobFile, parse_job_file
from tallystick.sdk.job_spec import Prepared, build_spec, prepare
from tests.numerics.plain import plain_losses
from tests.support.fakes.blobs import MemoryBlobs
from tests.support.fakes.memory_source import at_once
from training.config import ModelConfig, slices_of, train_config, whole_model
from training.data.loading import UnitRows
from training.data.manifest import Manifest
from training.data.prepare import prepare_data, recipe_of
from training.data.tokens import read_token_file
from training.models.folder import write_folder
from training.models.initial import initial_weights
from training.models.sources import read
from training.models.starting import starting_weights
from training.recipes import micro
from training.strategies.every_step.strategy import EveryStepWithTorch

MODEL = micro().model
TEXT = "".join(
    f"the stage holds unit {i} until its seal pays for work {i * i}\n" for i in range(900)
)


@pytest.fixture(scope="module")
def words() -> bytes:
    """A byte-level tokenizer of 300 ids, trained on the text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer.to_str().encode()


def written(folder: Path, model: ModelConfig, words: bytes | None = None) -> dict[str, Any]:
    """Initial weights, in a folder `model`."""
    weights = {n: v.numpy() for n, v in initial_weights(model, whole_model(model)).items()}
    write_folder(folder / "model", model, weights, words)
    return weights


def job(folder: Path, **changed: Any) -> JobFile:
    (folder / "text.txt").write_text(TEXT)
    fields = {
        "name": "a job", "recipe": "micro", "budget": 10, "price_ceiling": 2000, "deadline": "1h",
        "data": str(folder / "text.txt"), "steps": 6,
    }  # fmt: skip
    return parse_job_file(fields | changed)


def signed(made: JobFile, prepared: Prepared) -> JobSpec:
    return build_spec(
        made, prepared.config, poster=Address(bytes(20)), coordinator=Address(bytes(20)), salt=1,
        data=prepared.names, now=UnixSeconds(1000),
    )  # fmt: skip


def brought(prepared: Prepared) -> dict[Digest, bytes]:
    """All blobs that the market gets."""
    blobs = {name: path.read_bytes() for name, path in prepared.corpus.files()}
    if (start := prepared.start) is not None:
        blobs[start.index.digest()] = start.index.encoded()
        for number, name in enumerate(start.index.parts):
            first = number * start.index.part_bytes
            blobs[name] = bytes(read(start.file, first, first + start.index.size_of(number)))
    return blobs


def losses_of(spec: JobSpec, prepared: Prepared) -> list[float]:
    """What a peer that has the spec and the blobs, and nothing else, trains."""
    blobs = MemoryBlobs(brought(prepared))
    config = train_config(spec.model, spec.optimizer, spec.data, spec.batch)
    manifest = Manifest.decoded(blobs.fetch(spec.data.manifest))
    rows = UnitRows(manifest, config.data, config.model.sequence_length, blobs)
    weights = starting_weights(spec.model, config.model, whole_model(config.model), blobs)
    return plain_losses(config, rows, weights=weights)


def test_prepare__plain_job__bytes_and_a_seed(tmp_path: Path) -> None:
    prepared = prepare(job(tmp_path), tmp_path / "data")

    assert prepared.tokenizer == prepared.weights == ZERO_DIGEST
    assert prepared.corpus.manifest.tokens == "bytes"
    assert prepared.config.model == MODEL


@pytest.mark.parametrize(
    "strategy", [{}, {"strategy": "local", "local": {"inner_steps": 3}, "peers_per_stage": 2}]
)
@pytest.mark.parametrize("passes", [1, 0.3, 2.5])
def test_prepare__passes__are_the_least_steps_that_go_through_the_rows_so_often(
    tmp_path: Path, passes: float, strategy: dict[str, Any]
) -> None:
    made = job(tmp_path, steps=None, passes=passes, **strategy)

    prepared = prepare(made, tmp_path / "data")
    batch, rows = signed(made, prepared).batch, prepared.config.data.rows_per_step

    assert (batch.steps - 1) * rows < passes * prepared.num_rows <= batch.steps * rows
    assert prepared.config.optimizer.total_steps == batch.optimizer_steps
    assert prepared.length.startswith(f"{batch.steps} steps, ")


def test_prepare__passes_of_too_many_steps__refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"passes: .* have fewer passes"):
        prepare(job(tmp_path, steps=None, passes=10_000_000), tmp_path / "data")


def test_prepare__tokenizer__decides_vocabulary_and_shards_and_the_model_learns(
    tmp_path: Path, words: bytes
) -> None:
    (tmp_path / "words.json").write_bytes(words)
    made = job(tmp_path, tokenizer=str(tmp_path / "words.json"))

    prepared = prepare(made, tmp_path / "data")

    assert prepared.config.model == replace(MODEL, vocab_size=300)
    assert (prepared.corpus.manifest.tokens, prepared.tokenizer) == ("uint16", blob_digest(words))
    assert prepared.tokenizer_file == words
    losses = losses_of(signed(made, prepared), prepared)
    assert losses[-1] < losses[0]


def test_prepare__folder_with_a_tokenizer__both_are_used_and_stages_get_their_weights(
    tmp_path: Path, words: bytes
) -> None:
    model = replace(MODEL, vocab_size=304, init_seed=9)
    started = written(tmp_path, model, words)
    made = job(tmp_path, model={"folder": str(tmp_path / "model"), "sequence_length": 16}, stages=2)

    prepared = prepare(made, tmp_path / "data")
    spec = signed(made, prepared)

    assert prepared.config.model == replace(model, sequence_length=16, init_seed=0)
    assert prepared.tokenizer == blob_digest(words)
    blobs = MemoryBlobs(brought(prepared))
    stages = slices_of(prepared.config.model, spec.batch.layer_ends)
    parts = [starting_weights(spec.model, prepared.config.model, each, blobs) for each in stages]
    joined = {name: value for part in parts for name, value in part.items()}
    assert all(np.array_equal(joined[name].numpy(), started[name]) for name in started)
    strategy = EveryStepWithTorch(spec, blobs, at_once)
    last = strategy.first_state(StageIndex(1)).stage.weights()
    assert all(np.array_equal(value.numpy(), started[name]) for name, value in last.items())
    losses = losses_of(spec, prepared)
    assert losses[-1] < losses[0]


def test_prepare__tokenizer_with_more_ids_than_the_model__refused(
    tmp_path: Path, words: bytes
) -> None:
    written(tmp_path, MODEL, words)

    with pytest.raises(Refused, match="gives 300 different tokens, the model has vocab_size 256"):
        prepare(job(tmp_path, model=str(tmp_path / "model")), tmp_path / "data")


def test_prepare__weights_larger_than_a_blob__are_parts(tmp_path: Path) -> None:
    weights = written(tmp_path, MODEL)
    made = job(tmp_path, model=str(tmp_path / "model"))

    prepared = prepare(made, tmp_path / "data", part_bytes=1000)

    assert prepared.start is not None and len(prepared.start.index.parts) > 10
    blobs = MemoryBlobs(brought(prepared))
    spec = signed(made, prepared)
    started = starting_weights(spec.model, MODEL, whole_model(MODEL), blobs)
    assert all(np.array_equal(started[name].numpy(), weights[name]) for name in weights)


def test_prepare__weights_larger_than_all_parts__refused_with_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, MODEL)
    monkeypatch.setattr(prepare_module, "MAX_WHOLE_BYTES", 1000)

    with pytest.raises(TooLarge, match="a job starts from at most 1000"):
        prepare(job(tmp_path, model=str(tmp_path / "model")), tmp_path / "data")


def test_prepare__folder_without_a_tokenizer__refused_unless_bytes_are_its_tokens(
    tmp_path: Path, words: bytes
) -> None:
    written(tmp_path, replace(MODEL, vocab_size=304))
    (tmp_path / "words.json").write_bytes(words)

    with pytest.raises(Refused, match=r"has no tokenizer\.json.*save_pretrained.*or name one"):
        prepare(job(tmp_path, model=str(tmp_path / "model")), tmp_path / "data")
    named = job(tmp_path, model=str(tmp_path / "model"), tokenizer=str(tmp_path / "words.json"))
    assert prepare(named, tmp_path / "data").tokenizer == blob_digest(words)


def test_prepare__folder_of_data_prepare__is_the_same_data_with_its_own_tokenizer_alone(
    tmp_path: Path, words: bytes
) -> None:
    (tmp_path / "words.json").write_bytes(words)
    made = job(tmp_path, tokenizer=str(tmp_path / "words.json"))
    by_itself = prepare(made, tmp_path / "data")
    tokenizer = read_token_file(tmp_path / "words.json")
    recipe = recipe_of([str(tmp_path / "text.txt")], tokenizer=tokenizer)
    prepare_data(recipe, tmp_path / "prepared")
    folder = {"data": str(tmp_path / "prepared")}

    for named in ({}, {"tokenizer": str(tmp_path / "words.json")}):
        found = prepare(job(tmp_path, **folder, **named), tmp_path / "data")
        assert found.names == by_itself.names and found.config == by_itself.config
        assert found.corpus.folder == tmp_path / "prepared"
    (tmp_path / "others.json").write_bytes(words + b" ")
    with pytest.raises(Refused, match="was prepared with another tokenizer"):
        prepare(job(tmp_path, tokenizer=str(tmp_path / "others.json"), **folder), tmp_path / "data")
    (tmp_path / "prepared" / "tokenizer.json").unlink()
    with pytest.raises(Refused, match="was prepared with another tokenizer"):
        prepare(job(tmp_path, **folder), tmp_path / "data")
    state = tmp_path / "prepared" / "prepared.json"
    state.write_text(state.read_text().replace(by_itself.names.manifest.hex(), ""))
    with pytest.raises(NotFound, match="was not prepared to its end"):
        prepare(job(tmp_path, **folder, **named), tmp_path / "data")
