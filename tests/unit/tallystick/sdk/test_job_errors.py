"""What a poster is told of a job file with mistakes: all of them, each with its line and remedy."""

from pathlib import Path
from typing import Any

import pytest

from contracts.terms.errors import Malformed
from tallystick.sdk.job_file import load_job_file, parse_job_file

MANY = """\
nam: x
budget: ten
price_ceiling: 0
stages: 100
model:
  widht: 3
  num_layers: 0
data: [a, 5]
checking: sampled
manner_of: diloco
"""


def refused(folder: Path, text: str) -> Malformed:
    path = folder / "job.yaml"
    path.write_text(text)
    with pytest.raises(Malformed) as found:
        load_job_file(path)
    return found.value


def errors_of(folder: Path, text: str) -> dict[str, dict[str, Any]]:
    errors = refused(folder, text).data["errors"]
    assert isinstance(errors, list)
    return {each["key"]: each for each in errors}


def test_load__many_mistakes__all_are_told_at_once_with_their_lines(tmp_path: Path) -> None:
    found = errors_of(tmp_path, MANY)

    assert {key: each["line"] for key, each in found.items()} == {
        "name": 1,  # is missing: where the file begins
        "deadline": 1,
        "nam": 1,
        "budget": 2,
        "price_ceiling": 3,
        "stages": 4,
        "model.widht": 6,
        "model.num_layers": 7,
        "data.1": 8,
        "checking": 9,
        "manner_of": 10,
    }
    assert found["model.widht"]["column"] == 3


@pytest.mark.parametrize(
    ("text", "key", "given", "words"),
    [
        (MANY, "model.widht", "3", "did you mean 'width'?"),
        (MANY, "manner_of", "'diloco'", "there are: name, budget"),
        (MANY, "deadline", "", "is missing: How long after posting"),
        (MANY, "budget", "'ten'", "an amount in tokens is a number, e.g. 12.5; given is 'ten'"),
        (MANY, "stages", "100", "a whole number (1 to 64) is wanted, not 100"),
        (MANY, "checking", "'sampled'", "one of off, on is wanted, not 'sampled'"),
        ("learning_rate: 1", "learning_rate", "1", "it belongs under `optimizer`"),
        ("model: {budget: 4}", "model.budget", "4", "it belongs at the top of the file"),
    ],
)
def test_load__mistake__says_what_was_given_and_what_would_be_right(
    text: str, key: str, given: str, words: str, tmp_path: Path
) -> None:
    found = errors_of(tmp_path, text)[key]

    assert found["given"] == given
    assert words in found["problem"]


@pytest.mark.parametrize(
    ("text", "line"), [("a: 1\nb: [\n", 3), ("a: 1\nb: 1\na: 2\n", 3), ("a: 1\nb: *c\n", 2)]
)
def test_load__no_yaml__names_the_line_too(text: str, line: int, tmp_path: Path) -> None:
    error = refused(tmp_path, text)

    assert [each["line"] for each in error.data["errors"]] == [line]  # type: ignore[attr-defined]
    assert f"line {line}: not YAML" in str(error)


def test_parse__digits_without_end__are_not_shown_whole() -> None:
    with pytest.raises(Malformed) as found:
        parse_job_file({"steps": "9" * 5000, "stages": 10**5000})

    assert len(str(found.value)) < 1500
