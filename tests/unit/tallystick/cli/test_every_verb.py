"""Does every verb say what it answers with, show an example, and take the same options?"""

import re
from typing import Any

import pytest
from jsonschema_rs import meta

from tallystick.cli.main import all_verbs
from tallystick.cli.output import declared_by

VERBS = pytest.mark.parametrize(
    ("words", "verb"),
    [(f"{noun} {word}".strip(), verb) for noun, word, verb in all_verbs()],
    ids=lambda each: str(each),
)


@VERBS
def test_verb__declares_its_answer__with_a_schema_and_rows_of_bodies(words: str, verb: Any) -> None:
    declared = declared_by(verb.callback)

    assert declared is not None, f"{words} has no `@shows(...)`"
    meta.validate(declared.schema())
    assert declared.rows is None or declared.row is not None


@VERBS
def test_verb__help__has_an_example_of_itself(words: str, verb: Any) -> None:
    examples = re.findall(r"Example: (tallystick .*)", verb.help)

    assert len(examples) == 1
    assert examples[0].startswith(f"tallystick {words}")


@VERBS
def test_verb__options__mean_the_same_everywhere(words: str, verb: Any) -> None:
    names = {flag: option.name for option in verb.params for flag in option.opts}

    assert names["-o"] == names["--output"] == "output"
    assert names["-q"] == names["--quiet"] == "quiet"
    assert {"--json", "--out"} & names.keys() == set()
    assert [option.name for option in verb.params if not option.help and not option.hidden] == []
