"""A job on chats, from its file to what its poster signs and brings."""

from pathlib import Path
from typing import Any

import pytest

from contracts.terms.errors import Malformed, NotFound, Refused
from contracts.terms.ids import Address
from contracts.terms.items import ItemNumber
from contracts.terms.messages import JobSpec
from contracts.terms.moments import UnixSeconds
from contracts.terms.targets import TargetCounts
from tallystick.sdk.job_file import JobFile, parse_job_file
from tallystick.sdk.job_spec import Prepared, build_spec, prepare
from tests.support.chats import made_up, write_chats, write_tokenizer
from training.data.loading import corpus_rows, targets_of
from training.data.prepare import FolderBlobs


def job(folder: Path, **changed: Any) -> JobFile:
    """A job on the chats in `folder`."""
    values: dict[str, Any] = {
        "name": "chats",
        "recipe": "micro",
        "budget": 10,
        "price_ceiling": 2000,
        "deadline": "1h",
        "objective": "sft",
        "data": str(folder / "*.jsonl"),
        "tokenizer": str(folder / "tokenizer.json"),
        "model": {"sequence_length": 96},
    }
    return parse_job_file({name: each for name, each in (values | changed).items() if each})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Holds a tokenizer and a file of chats."""
    write_tokenizer(tmp_path)
    write_chats(tmp_path / "chats.jsonl", made_up())
    return tmp_path


def signed(made: JobFile, prepared: Prepared) -> JobSpec:
    poster = Address(bytes(20))
    return build_spec(
        made,
        prepared.config,
        poster=poster,
        coordinator=poster,
        salt=1,
        data=prepared.names,
        now=UnixSeconds(1000),
    )


def test_prepare__chats__spec_names_blobs_that_give_rows_and_their_targets(folder: Path) -> None:
    made = job(folder)

    prepared = prepare(made, folder / "data")

    spec, blobs = signed(made, prepared), FolderBlobs(prepared.corpus)
    assert spec.data.objective == "sft"
    targets = TargetCounts.decoded(blobs.fetch(spec.data.targets))
    assert targets_of(spec, blobs) == targets == prepared.corpus.targets
    assert corpus_rows(spec, blobs).load(ItemNumber(0))


def test_prepare__text__names_no_targets(folder: Path) -> None:
    (folder / "text.txt").write_text("".join(f"line {n} to learn\n" for n in range(4000)))
    made = job(folder, objective=None, data=str(folder / "text.txt"), tokenizer=None)

    spec = signed(made, prepare(made, folder / "data"))

    assert (spec.data.objective, spec.data.targets) == ("pretrain", bytes(32))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"objective": "dpo"}, r"it is pretrain \(text\) or sft \(chats\); .* DPO"),
        ({"strategy": "local"}, "sft is trained by the strategy every_step"),
        ({"data": "builtin"}, "sft needs chats"),
        ({"data": None}, "sft needs chats"),
        ({"data": {"from": "*.jsonl", "field": "text"}}, "leave `field` of `data` out"),
    ],
)
def test_parse__objective_that_does_not_fit__is_one_sentence(
    folder: Path, change: dict[str, Any], why: str
) -> None:
    with pytest.raises(Malformed, match=f"objective: .*{why}"):
        job(folder, **change)


def test_prepare__folder_of_the_other_objective__is_refused(folder: Path) -> None:
    rows = prepare(job(folder), folder / "data").corpus.folder

    with pytest.raises(Refused, match="holds chats, prepared for a job with `objective: sft`"):
        prepare(job(folder, objective=None, data=str(rows)), folder / "data")
    with pytest.raises(Refused, match="objective sft reads chats, not what `tallystick data"):
        prepare(job(folder, data=str(rows)), folder / "data")


def test_prepare__without_tokenizer_or_template__is_refused(folder: Path) -> None:
    with pytest.raises(Refused, match="tokenizer: objective sft needs one with a chat template"):
        prepare(job(folder, tokenizer=None), folder / "data")
    write_tokenizer(folder, None)
    with pytest.raises(NotFound, match="has no chat template"):
        prepare(job(folder), folder / "data")
