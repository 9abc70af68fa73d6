"""A job that a person names by the digits that it begins with."""

import pytest

from contracts.terms.errors import Conflict, Malformed, NotFound, TallystickError
from contracts.terms.ids import JobId
from tallystick.cli.options import one_of

JOBS = {
    JobId(bytes.fromhex(f"{start:0<64}")): start for start in ("ab12cd34", "ab12cd3400ff", "cc")
}


@pytest.mark.parametrize(
    ("text", "refusal", "words"),
    [
        ("cc", Malformed, "it has 2 digits"),
        ("job", Malformed, "hexadecimal digits"),
        ("cc000001", NotFound, "no job of here begins with cc000001"),
        ("ab12cd34", Conflict, "2 jobs begin with"),
    ],
)
def test_one_of__too_few_digits_or_not_those_of_one_job__says_which(
    text: str, refusal: type[TallystickError], words: str
) -> None:
    with pytest.raises(refusal, match=words):
        one_of(JOBS, text, "here")
