"""A folder named where a file is wanted, or a file for a folder: the error says what to write."""

from collections.abc import Callable
from pathlib import Path

import pytest

from contracts.chain.deployment import load_deployment
from contracts.terms.errors import Refused
from tallystick.reading import read_whole
from tallystick.sdk.job_file import load_job_file
from training.data.sources import matching_files
from training.data.tokens import read_token_file
from training.models.folder import read_config


@pytest.mark.parametrize(
    ("reads", "words"),
    [
        (lambda folder: matching_files([str(folder)]), "data: {} is a folder; write {}/*.txt"),
        (read_token_file, "tokenizer: {} is a folder; write {}/tokenizer.json"),
        (lambda folder: read_config(folder / "file"), "{}/file is a file; write the folder, {}"),
        (load_job_file, "cannot read {}: it is a folder"),
        (lambda folder: read_whole(folder, 1), "cannot read {}: it is a folder"),
        (load_deployment, "cannot read {}: Is a directory; name the file that"),
    ],
)
def test_path__folder_for_a_file_or_the_reverse__is_explained(
    reads: Callable[[Path], object], words: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(Refused) as caught:
        reads(tmp_path)

    assert words.replace("{}", str(tmp_path)) in caught.value.message
