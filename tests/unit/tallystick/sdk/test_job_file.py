"""What a poster may write in a job file, and what he is told when it is something else."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any, get_args

import pytest

from contracts.terms.amounts import BaseUnits, Flops
from contracts.terms.errors import Malformed, NotFound, Refused, TallystickError, TooLarge
from contracts.terms.ids import Address, Digest, StageIndex
from contracts.terms.messages import AdapterSpec, JobSpec, LinearName, LocalSpec, StopEarlySpec
from contracts.terms.moments import UnixSeconds
from tallystick.sdk.job_file import (
    USUAL_CLASS,
    DataFields,
    JobFile,
    load_job_file,
    parse_job_file,
    size,
    span,
)
from tallystick.sdk.job_spec import DataNames, build_spec
from tallystick.sdk.job_text import MAX_FILE_BYTES
from training.config import slices_of, train_config
from training.data.sources import matching_files
from training.flops import item_flops
from training.memory import peer_memory
from training.recipes import micro
from verification.draws.economics import most_value, terms_of, value

GOOD = {
    "name": "a job",
    "recipe": "micro",
    "budget": 10,
    "price_ceiling": 2000,
    "deadline": "1h",
}


def job(**changed: Any) -> JobFile:
    return parse_job_file(GOOD | changed)


def spec_of(made: JobFile, **options: Any) -> JobSpec:
    return build_spec(
        made,
        made.train_config(),
        poster=Address(bytes(20)),
        coordinator=Address(bytes(20)),
        salt=1,
        data=DataNames(Digest(bytes(32))),
        now=UnixSeconds(1000),
        **options,
    )


def written(folder: Path, text: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(text, errors="surrogateescape")
    return path


def told(path: Path, kind: type[TallystickError] = Malformed) -> str:
    """The refusal of a job file, which is one sentence."""
    with pytest.raises(kind) as refused:
        load_job_file(path)
    assert str(path) in str(refused.value)
    return str(refused.value)


# ---------------------------------------------------------------------------- spans and memories


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (span, "90s", timedelta(seconds=90)),
        (span, "30m", timedelta(minutes=30)),
        (span, " 2 h", timedelta(hours=2)),
        (span, "1d", timedelta(days=1)),
        (size, "512MiB", 2**29),
        (size, "8 GiB", 2**33),
        (size, "1KiB", 1024),
        (size, "2TiB", 2**41),
    ],
)
def test_span_and_size__number_and_unit__are_so_much(
    read: Callable[[object], object], text: str, value: object
) -> None:
    assert read(text) == value


@pytest.mark.parametrize("value", ["", "0s", "-1s", "5", 5, "1w", "1.5h", "9" * 30 + "d", "1h 2m"])
def test_span__anything_else__is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="a span is a number"):
        span(value)


@pytest.mark.parametrize("value", ["", "8", 8, "8GB", "0GiB", "1.5GiB", "-1MiB", None])
def test_size__anything_else__is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="a memory is a number"):
        size(value)


# ------------------------------------------------------------------------------------ the fields


# -------------------------------------------------------------------------------------- the file

TEXT = "name: a job\nbudget: 10\nprice_ceiling: 2000\ndeadline: 1h\n"


def test_load__paths__are_relative_to_the_file_and_the_home_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jobs").mkdir()
    paths = "data: ['text/*.txt', /etc/words, '~/t/*', 's3://a/b']\ntokenizer: ~/t.json\n"
    written(tmp_path / "jobs", TEXT + paths + "model: {folder: llama, sequence_length: 64}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ann")

    loaded = load_job_file(Path("jobs/job.yaml"))

    here = [f"{tmp_path}/jobs/text/*.txt", "/etc/words", "/home/ann/t/*", "s3://a/b"]
    assert loaded.documents == DataFields.model_validate({"from": here})
    assert (loaded.tokenizer, loaded.model_folder) == ("/home/ann/t.json", tmp_path / "jobs/llama")
    assert load_job_file(written(tmp_path, TEXT + "model: ~/llama")).model == "/home/ann/llama"
    assert load_job_file(written(tmp_path, TEXT)).model_folder is None


@pytest.mark.parametrize("folder", ["[work] ann", "all*", "what?", "{a,b}"])
@pytest.mark.parametrize(
    "data", ["texts/*.txt", "'records [2024]/a.txt'", "'records [2024]/*'", "'records ?2024]/?.*'"]
)
def test_load__names_that_would_be_patterns__are_taken_literally_where_they_exist(
    folder: str, data: str, tmp_path: Path
) -> None:
    text = tmp_path / folder / ("texts" if "texts" in data else "records [2024]") / "a.txt"
    text.parent.mkdir(parents=True)
    text.touch()

    loaded = load_job_file(written(tmp_path / folder, f"{TEXT}data: {data}\n"))

    assert matching_files(loaded.documents.sources) == [text]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "mapping"),
        ("a: [", "not YAML"),
        ("\x00\x01\x02", "not YAML"),
        ("a: !!python/object:os.system x\n", "not YAML"),
        ("deadline: 2024-99-99\n", "not YAML"),
        (f"budget: {'9' * 5000}\n", "not YAML"),
        ("[" * 100, "nested deeper"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n", "no aliases"),
        ("<<: *nothing\n", "no aliases"),
        (TEXT + "budget: 11\n", "'budget' is there twice"),
        (TEXT + "model: {width: 1, width: 2}\n", "'width' is there twice"),
        (TEXT + "? [a]\n: b\n", "not YAML"),
        ("name: \udcff\udcfe\n", "not YAML"),
        (TEXT + "steps: 010", "line 5: not YAML: 010 would be read as 8: write that"),
        (TEXT + "steps: 1:30", "1:30 would be read as 90"),
        (TEXT + "burst: 123456789012.1234567", "would be read as 123456789012.12346"),
        (TEXT + "audit_rate: yes", "audit_rate: a number"),
        (TEXT + "repeat_rate: '0.5'", "repeat_rate: a number"),
        (TEXT + "optimizer: {total_steps: 500}", "unknown field 'total_steps'"),
    ],
)
def test_load__no_job_file_or_not_what_is_written__says_why(
    tmp_path: Path, text: str, words: str
) -> None:
    assert words in " ".join(told(written(tmp_path, text)).split())


def test_load__one_byte_too_long__is_too_large(tmp_path: Path) -> None:
    fits = TEXT + "#" * (MAX_FILE_BYTES - len(TEXT))

    assert load_job_file(written(tmp_path, fits)).name == "a job"
    assert "larger" in told(written(tmp_path, fits + "#"), TooLarge)


def test_load__no_file__says_so(tmp_path: Path) -> None:
    assert "no job file" in told(tmp_path / "missing.yaml", NotFound)
    assert "it is no file" in told(Path("/dev/zero"), Refused)


# ------------------------------------------------------------------------------- stages and peers


def test_build_spec__three_stages__are_planned_and_each_is_priced() -> None:
    made = job(
        recipe="tiny_llama", stages=3, peers_per_stage=3, spares=1, boundary_codec="blockwise8"
    )

    spec = spec_of(made)

    model = made.train_config().model
    stages = slices_of(model, (1, 2, 3))
    assert (spec.batch.stages, spec.batch.layer_ends) == (3, (1, 2, 3))
    assert (spec.batch.peers_per_stage, spec.batch.spares, spec.batch.chunks) == (3, 1, 6)
    assert spec.item_flops == tuple(item_flops(model, stage, 4) for stage in stages)
    assert spec.memory_bytes == max(peer_memory(model, stage, 4) for stage in stages)
    assert spec.rules.boundary_codec == "blockwise8"


def test_build_spec__tied_head_over_two_stages__both_ends_have_parts_for_the_shared_chunks() -> (
    None
):
    spec = spec_of(job(stages=2, model={"tied_head": True}))

    assert spec.model.tied_head and spec.batch.stages == 2
    assert [len(spec.chunking.of_stage(StageIndex(stage))) for stage in range(2)] == [4, 4]
    with pytest.raises(Malformed, match="4096 chunks"):
        spec_of(job(stages=2, model={"tied_head": True}, chunks=1366))


def test_build_spec__layer_ends_said__are_the_cut() -> None:
    spec = spec_of(job(model={"num_layers": 5}, layer_ends=[1, 5], chunks=9))

    assert (spec.batch.stages, spec.batch.layer_ends, spec.batch.chunks) == (2, (1, 5), 9)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"stages": 3}, "2 layers cannot be cut into 3"),
        ({"layer_ends": [1]}, "do not cut 2 layers"),
        ({"stages": 1, "layer_ends": [1, 2]}, "2 ends, stages is 1"),
        ({"peer_memory": "1MiB"}, "use more stages"),
        ({"layer_ends": [1, 2], "peer_memory": "1MiB"}, "a peer needs .* peer_memory is 1048576"),
        ({"optimizer": {"learning_rate": 2.5e-9}}, "learning_rate = 2.5e-09 is finer than 1/1000"),
        ({"optimizer": {"beta2": 0.9999999}}, "write 1.0"),
        ({"optimizer": {"final_ratio": 1e-7}}, "final_ratio = 1e-07"),
        ({"model": {"norm_eps": 1.25e-12}}, "norm_eps = 1.25e-12"),
        ({"checking": "on", "audit_rate": 0.0500001}, "audit_rate = 0.0500001"),
        ({"model": {"width": "32"}}, r"model\.width: a whole number"),
        ({"model": {"width": True}}, r"model\.width: a whole number"),
        ({"model": {"width": 33}}, "multiple of num_heads"),
        ({"model": {"num_layers": 10**9}}, "num_layers"),
        ({"model": {"tied_head": 1}}, "true or false"),
        ({"optimizer": {"learning_rate": "1e-3"}}, r"write 1\.0e-3"),
        ({"optimizer": {"learning_rate": float("nan")}}, "learning_rate"),
    ],
)
def test_build_spec__value_that_cannot_be_or_is_too_fine_to_be_signed__refused(
    changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(Refused, match=words):
        spec_of(job(**changed))


# ------------------------------------------------------------------------------------ local steps

LOCAL = {"strategy": "local", "peers_per_stage": 4}


def test_build_spec__local_steps__by_default_are_rounds_of_fifty_in_four_bits() -> None:
    made = job(**LOCAL, rows_per_unit=3, steps=6)

    spec = spec_of(made)

    assert spec.strategy == "local" and spec.rules.gradient_codec == "seeded4"
    assert spec.batch.local == LocalSpec(
        inner_steps=50, segments=1, rewarm_steps=5, outer_rate=10**6, outer_momentum=0,
        round_time=60_000, quorum=3,
    )  # fmt: skip
    assert (spec.batch.rows_per_unit, spec.batch.rows_at_once) == (150, 3)
    assert (spec.batch.stages, spec.batch.units_per_step, spec.batch.steps) == (1, 4, 6)
    assert spec.item_flops[0] == 50 * spec_of(job(rows_per_unit=3)).item_flops[0]


@pytest.mark.parametrize("warmup", [None, 250])
def test_build_spec__local_steps__schedule_is_of_inner_steps_and_as_signed(
    warmup: int | None,
) -> None:
    rounds = {"inner_steps": 20, "segments": 2}
    made = job(**LOCAL, local=rounds, steps=7, optimizer={"warmup_steps": warmup})

    spec = spec_of(made)

    config = made.train_config()
    assert config.optimizer.total_steps == 7 * 20 * 2 and spec.batch.units_per_step == 8
    assert train_config(spec.model, spec.optimizer, spec.data, spec.batch) == config
    assert warmup is None or config.optimizer.warmup_steps == warmup


def test_build_spec__local_steps_said__are_signed_as_said() -> None:
    said = {"outer_rate": 0.7, "outer_momentum": 0.9, "round_time": "2m", "quorum": 4}
    said |= {"moments": "mean"}
    spec = spec_of(job(**LOCAL, local=said, gradient_codec="bfloat16"))

    local = spec.batch.local
    assert local is not None and (local.outer_rate, local.outer_momentum) == (700_000, 900_000)
    assert (local.round_time, local.quorum, local.moments) == (120_000, 4, "mean")
    assert spec.rules.gradient_codec == "bfloat16"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (LOCAL | {"stages": 2}, "stages: .*whole models: leave it out, or use every_step"),
        (LOCAL | {"layer_ends": [1, 2]}, "layer_ends: .*whole models"),
        ({"local": {"inner_steps": 5}}, "local: .*add `strategy: local`"),
        ({"gradient_codec": "seeded4"}, "gradient_codec: seeded codes .*add `strategy: local`"),
        ({"strategy": "fast"}, "strategy: one of every_step, local is wanted"),
        ({"inner_steps": 5}, "unknown field 'inner_steps'; it belongs under `local`"),
        (LOCAL | {"units_per_step": 5}, "4 peers x 1 segments, so 4 units: leave it out"),
        (LOCAL | {"rows_per_unit": 2000}, "50 local steps of 2000 rows are more than 65536"),
        (LOCAL | {"steps": 10**6}, "fewer rounds, or shorter ones"),
        (LOCAL | {"local": {"outer_rate": 1e-7}}, "local.outer_rate = 1e-07 is finer"),
        (
            LOCAL | {"local": {"quorum": 5}},
            "local.quorum is above the number of peers, spares included",
        ),
        (LOCAL | {"peer_memory": "1MiB"}, "use strategy every_step and more stages"),
        (
            LOCAL | {"checking": "on"},
            "device_class: a checked job of the strategy local needs one",
        ),
    ],
)
def test_build_spec__local_steps_that_cannot_be__says_what_would_do(
    changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(Refused, match=words):
        spec_of(job(**changed))


def test_build_spec__device_class_as_offers_say_it__is_that_of_the_calibration_table() -> None:
    spec = spec_of(job(**LOCAL, checking="on", device_class=f"{USUAL_CLASS}+cpu"))

    assert spec.rules.audit is not None and spec.rules.audit.device_class == USUAL_CLASS


# ----------------------------------------------------------------------------- how long, how fast


def test_build_spec__wsd__is_signed_as_said() -> None:
    made = job(steps=7, optimizer={"schedule": "wsd", "decay_ratio": 0.3, "final_ratio": 0})

    spec = spec_of(made)

    assert (spec.optimizer.schedule, spec.optimizer.decay_ratio) == ("wsd", 300_000)
    config = train_config(spec.model, spec.optimizer, spec.data, spec.batch)
    assert config == made.train_config()


def test_build_spec__stop_early__is_signed_as_said() -> None:
    said = {"patience": 4, "min_delta": 0.01}

    assert spec_of(job()).batch.stop_early is None
    spec = spec_of(job(validate_every=2, stop_early=said))
    assert spec.batch.stop_early == StopEarlySpec(patience=4, min_delta=10_000)
    with pytest.raises(Refused, match=r"stop_early\.min_delta = 1e-07 is finer"):
        spec_of(job(validate_every=2, stop_early={"min_delta": 1e-7}))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"stop_early": {"patience": 2}}, "stop_early: it goes by validations: add"),
        ({"validate_every": 2, "stop_early": {"patience": 0}}, "stop_early.patience"),
        ({"steps": 3, "passes": 2}, "passes: steps says already how long .*: leave one"),
        ({"passes": 0}, "passes"),
        ({"optimizer": {"decay_ratio": 0.1}}, "optimizer.decay_ratio: .*add `schedule: wsd`"),
        ({"optimizer": {"schedule": "wsd", "decay_ratio": 0}}, "optimizer.decay_ratio"),
        ({"optimizer": {"schedule": "step"}}, "one of constant, cosine, linear, wsd is wanted"),
    ],
)
def test_job_file__steps_or_schedule_that_cannot_be__says_what_is_wrong(
    changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(Malformed, match=words):
        job(**changed)


def test_build_spec__publish_every__is_signed_and_not_too_often() -> None:
    said = {"checkpoint_every": 4, "steps": 100}

    assert spec_of(job(**said)).batch.publish_every == 0
    assert spec_of(job(**said, publish_every=8)).batch.publish_every == 8
    with pytest.raises(
        Malformed, match=r"publish_every: make it a multiple of checkpoint_every, 4"
    ):
        job(**said, publish_every=6)
    with pytest.raises(Malformed, match=r"^job: publish_every: .*99 times before the end, at most"):
        spec_of(job(steps=100, checkpoint_every=1, publish_every=1))


# ---------------------------------------------------------------------- models from elsewhere


def test_train_config__a_folders_model__only_its_rows_may_be_shorter() -> None:
    started = replace(micro().model, width=16, num_layers=4)

    made = job(model={"folder": "m", "sequence_length": 8}).train_config(started=started)

    assert made.model == replace(started, sequence_length=8)
    with pytest.raises(Malformed, match=r"model\.width: the folder decides it"):
        job(model={"folder": "m", "width": 32}).train_config(started=started)


def test_train_config__adapter__is_of_the_folders_model_and_as_said() -> None:
    started = micro().model
    every = tuple(sorted(get_args(LinearName)))

    usual = job(model="m", adapter={}).train_config(started=started).model
    adapter = {"rank": 4, "alpha": 2, "targets": ["v_proj", "q_proj"]}
    said = job(model={"folder": "m"}, adapter=adapter)

    assert usual == replace(started, adapter=AdapterSpec(rank=8, alpha=16, targets=every))
    found = said.train_config(started=started).model.adapter
    assert found == AdapterSpec(rank=4, alpha=2, targets=("q_proj", "v_proj"))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"adapter": {"rank": 4}}, "adapter: .*name its folder as `model`"),
        ({"model": {"width": 32}, "adapter": {}}, "adapter: .*name its folder as `model`"),
        ({"model": "m", "adapter": {"rank": 0}}, r"adapter\.rank"),
        ({"model": {"job": "my-job"}}, r"model\.job: it is the id .* as JOB@200"),
        ({"model": {"job": "ab" * 32, "folder": "m"}}, r"model\.job: folder says already"),
        ({"model": "m", "adapter": {"targets": "q_proj"}}, r"adapter\.targets"),
        ({"model": "m", "adapter": {"targets": ["lm_head"]}}, r"adapter\.targets"),
    ],
)
def test_job_file__adapter_or_start_that_cannot_be__says_what_would_do(
    changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(Malformed, match=words):
        job(**changed)


def test_job_file__model_of_a_job__is_as_its_folder_once_it_is_there() -> None:
    made = job(model={"job": "ab" * 32 + "@40", "sequence_length": 8}, adapter={})

    assert made.model_job == "ab" * 32 + "@40" and made.model_folder is None
    folder = made.with_model_folder(Path("/m"))
    assert folder.model_job is None and folder == job(
        model={"folder": "/m", "sequence_length": 8}, adapter={}
    )


def test_train_config__tokenizer__decides_the_vocabulary_of_a_recipe() -> None:
    assert job().train_config(vocab_size=700).model.vocab_size == 700
    larger = job(model={"vocab_size": 1024}).train_config(vocab_size=700)
    assert larger.model.vocab_size == 1024
    with pytest.raises(Refused, match="gives 700 different tokens, the model has vocab_size 256"):
        job(model={"vocab_size": 256}).train_config(vocab_size=700)
    with pytest.raises(Refused, match="gives 700 different tokens"):
        job(model="m").train_config(started=micro().model, vocab_size=700)


# ---------------------------------------------------------------------------------- checked jobs


@pytest.mark.parametrize(
    ("reservable", "times"),
    [(10**18, Fraction(5, 4) * 20), (1, Fraction(5, 4))],
    ids=["enough", "less than the least"],
)
def test_build_spec__checked__stake_brings_draws_to_their_floor_as_far_as_it_can_be_reserved(
    reservable: int, times: Fraction
) -> None:
    asked = job(checking="on", peers_per_stage=3, units_per_step=7, repeat_rate=0)
    spec = spec_of(asked, reservable=BaseUnits(reservable))

    audit = spec.rules.audit
    assert audit is not None
    worth = value(Flops(3 * spec.item_flops[0]), spec.price_ceiling)
    power = Fraction(99, 100) / 2  # one of the two who may audit is a friend
    assert spec.min_stake == ceil(worth * (times / power - 1))
    assert (
        most_value(terms_of(audit, 5), stake=spec.min_stake, waiting=BaseUnits(0), power=power)
        >= worth
    )


@pytest.mark.parametrize(
    ("changed", "budget"), [({}, 2_500_000), ({"audit_budget": "1.5"}, 1_500_000)]
)
def test_build_spec__checked__audits_have_a_quarter_or_what_the_file_says(
    changed: dict[str, object], budget: int
) -> None:
    audit = spec_of(job(checking="on", **changed)).rules.audit

    assert audit is not None and audit.budget == budget


def test_build_spec__checked_and_dear__audits_have_what_six_steps_need_at_once() -> None:
    spec = spec_of(job(checking="on", price_ceiling=10**7, repeat_rate=0.5))
    step = Flops(spec.batch.units_per_step * sum(spec.item_flops))

    assert spec.rules.audit is not None and spec.budget < 4 * spec.rules.audit.budget
    assert spec.rules.audit.budget == value(Flops(9 * step), spec.price_ceiling)


@pytest.mark.parametrize(
    ("changed", "stake"),
    [({}, 0), ({"min_stake": "1.5"}, 1_500_000), ({"checking": "on", "min_stake": 2}, 2_000_000)],
)
def test_build_spec__unchecked_or_stake_said__is_what_the_file_says(
    changed: dict[str, object], stake: int
) -> None:
    assert spec_of(job(**changed)).min_stake == stake


def test_build_spec__checked__asks_for_the_memory_of_an_audit_too() -> None:
    made = job(recipe="tiny_llama", checking="on")
    (stage,) = slices_of(made.train_config().model, (3,))

    spec = spec_of(made)

    assert spec.memory_bytes == peer_memory(made.train_config().model, stage, 4, audits=True)
    assert spec.memory_bytes > spec_of(job(recipe="tiny_llama")).memory_bytes


def test_build_spec__checked_and_a_cut_that_audits_do_not_fit__is_refused() -> None:
    tight = spec_of(job(stages=2)).memory_bytes

    assert spec_of(job(stages=2, peer_memory=kib(tight))).batch.stages == 2
    with pytest.raises(Refused, match="use more stages"):
        spec_of(job(stages=2, peer_memory=kib(tight), checking="on"))
    with pytest.raises(Refused, match="a peer needs"):
        spec_of(job(layer_ends=[1, 2], peer_memory=kib(tight), checking="on"))


def kib(size: int) -> str:
    """Bytes as a job file says them, rounded up."""
    return f"{-(-size // 1024)}KiB"


@pytest.mark.parametrize("text", ["0x10", "1_6", "16", "+16"])
def test_load_job_file__number_in_another_spelling__is_that_number(
    tmp_path: Path, text: str
) -> None:
    assert load_job_file(written(tmp_path, f"{TEXT}steps: {text}\n")).steps == 16
