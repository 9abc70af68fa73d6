"""Are the newest two checkpoints kept, and is a damaged file refused by name?

That a run goes on from one as if it had not been cut off: `test_pipeline.py`.
"""

import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from contracts.terms.errors import Malformed, NotFound, Unavailable, UnknownVersion, WrongBytes
from contracts.terms.ids import ZERO_DIGEST, StageIndex
from tests.numerics.loop import new_stage, rows_of, saved, synthetic_corpus, train
from training.config import slices_of
from training.recipes import micro
from training.stages.stage import Stage
from training.strategies.state_files import StageState

CONFIG = micro(num_steps=8)
ROWS = rows_of(CONFIG, synthetic_corpus())


def state_of(stage: Stage) -> StageState:
    return StageState(StageIndex(0), stage, 1)


def trained(num_steps: int) -> Stage:
    stage = new_stage(CONFIG)
    train(stage, CONFIG, ROWS, range(1, num_steps + 1))
    return stage


def test_save_checkpoint__three_saved__keeps_the_newest_two(tmp_path: Path) -> None:
    stage = new_stage(CONFIG)

    for step in (10, 20, 30):
        saved(stage, tmp_path, step)

    kept = [f"step-000000{step}.safetensors" for step in (20, 30)]
    assert sorted(os.listdir(tmp_path)) == kept


def test_restore__newest_cut_short__loads_the_one_before(tmp_path: Path) -> None:
    older, newer = trained(1), trained(2)
    saved(older, tmp_path, 1)
    path = saved(newer, tmp_path, 2)
    path.write_bytes(path.read_bytes()[:-100])
    stage = new_stage(CONFIG)

    assert state_of(stage).restore(tmp_path) == 1
    assert stage.roots() == older.roots()


def test_restore__left_aside_by_a_kill__is_not_looked_at(tmp_path: Path) -> None:
    (tmp_path / "step-00000009.safetensors.tmp").write_bytes(b"half")

    assert state_of(new_stage(CONFIG)).restore(tmp_path) == 0


@pytest.mark.parametrize("cut_to", [0, 7, 200, -1])
def test_load__truncated_anywhere__malformed_with_its_name(tmp_path: Path, cut_to: int) -> None:
    path = saved(new_stage(CONFIG), tmp_path, 5)
    path.write_bytes(path.read_bytes()[:cut_to])

    with pytest.raises(Malformed, match=r"step-00000005\.safetensors"):
        state_of(new_stage(CONFIG)).load(path)


def test_load__any_bit_flipped__refused_and_the_stage_unchanged(tmp_path: Path) -> None:
    path = saved(trained(1), tmp_path, 1)
    whole, stage = path.read_bytes(), new_stage(CONFIG)
    before = stage.roots()

    for at in range(0, len(whole), len(whole) // 97):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        with pytest.raises((Malformed, WrongBytes, UnknownVersion), match="step-00000001"):
            state_of(stage).load(path)

    assert stage.roots() == before


def test_load__another_root_is_sealed__wrong_bytes(tmp_path: Path) -> None:
    stage = new_stage(CONFIG)
    path = saved(stage, tmp_path, 1)

    state_of(new_stage(CONFIG)).load(path, stage.roots().state)
    with pytest.raises(WrongBytes, match="another state root"):
        state_of(new_stage(CONFIG)).load(path, ZERO_DIGEST)


def test_load__missing_other_program_or_other_stage__typed_refusal(
    tmp_path: Path,
) -> None:
    foreign, path = tmp_path / "foreign.safetensors", tmp_path / "step-00000001.safetensors"
    save_file({"a": torch.ones(2)}, foreign)
    saved(Stage(CONFIG.model, slices_of(CONFIG.model, (1, 2))[0], CONFIG.optimizer), tmp_path, 1)

    for file, error in (
        (tmp_path / "none.safetensors", NotFound),
        (foreign, UnknownVersion),
        (path, Malformed),
    ):
        with pytest.raises(error):
            state_of(new_stage(CONFIG)).load(file)


def test_save__folder_cannot_be_made__unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(Unavailable, match="cannot write checkpoint"):
        saved(new_stage(CONFIG), tmp_path / "file", 1)
