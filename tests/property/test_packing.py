"""For all documents: each is whole in one run, equal ones in the same, batches change nothing."""

import json
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.terms.errors import Refused
from training.data.prepare import PreparedData, prepare_data, recipe_of

texts = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="\n"), min_size=1),
    max_size=60,
)


def lines_of(found: PreparedData, run: str) -> list[str]:
    data = b"".join(path.read_bytes() for path in sorted(found.folder.glob(f"{run}-?????")))
    return data.decode().removesuffix("\n").split("\n")


@settings(max_examples=40)
@given(documents=texts, batch=st.integers(1, 200))
def test_prepare__all_documents__are_in_one_run_each_whatever_is_packed_at_once(
    documents: list[str], batch: int
) -> None:
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        records = "".join(json.dumps({"text": text}) + "\n" for text in documents)
        (folder / "a.jsonl").write_text('{"text": ""}\n' + records)
        patch.setattr("os.fsync", lambda _: None)
        recipe = recipe_of([str(folder / "a.jsonl")])
        try:
            found = prepare_data(recipe, folder / "to")
        except Refused as refused:
            assert "too few" in refused.message
            return
        patch.setattr("training.data.prepare.BATCH_CHARACTERS", batch)
        patch.setattr("training.data.prepare.SAVE_SECONDS", 0.0)
        patch.setattr("training.data.prepare.MAX_SHARD_BYTES", 64)
        in_small = prepare_data(recipe, folder / "in small")

        train, validation = lines_of(found, "train"), lines_of(found, "validation")
        assert Counter(train) + Counter(validation) == Counter(documents)
        assert not set(train) & set(validation)
        assert (lines_of(in_small, "train"), lines_of(in_small, "validation")) == (
            train,
            validation,
        )
