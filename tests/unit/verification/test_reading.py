"""Reading an untrusted structure by paths."""

from collections.abc import Callable

import pytest

from contracts.terms.encoding import Value
from contracts.terms.errors import AuditMismatch, Malformed
from verification.reading import Field, at


def path_of(act: Callable[[], object]) -> str:
    with pytest.raises(AuditMismatch) as caught:
        act()
    return str(caught.value.data["path"])


def test_field__record__names_the_path_of_each_child() -> None:
    fields = Field({"a": [1, 2]}).record("a")

    assert [each.path for each in fields["a"].list()] == ["a/0", "a/1"]


@pytest.mark.parametrize("value", [{}, {"a": 1, "b": 2}, [1], None, 5])
def test_field__other_keys_than_expected__is_a_mismatch(value: Value) -> None:
    assert path_of(lambda: Field(value, "x").record("a")) == "x"


WRONG: list[tuple[Value, Callable[[Field], object]]] = [
    (5, lambda field: field.list()),
    (1, lambda field: field.list()),
    ("x", lambda field: field.bytes()),
    (b"x", lambda field: field.bytes(2, 3)),
    (-1, lambda field: field.integer()),
    (True, lambda field: field.integer()),
    (b"x" * 15, lambda field: field.integer()),
    ((5).to_bytes(16, "big"), lambda field: field.integer()),
    (1, lambda field: field.boolean()),
    ("b", lambda field: field.text("a")),
]


@pytest.mark.parametrize(("value", "read"), WRONG)
def test_field__another_type__is_a_mismatch_at_its_path(
    value: Value, read: Callable[[Field], object]
) -> None:
    assert path_of(lambda: read(Field(value, "here"))) == "here"


def test_field__large_integer__is_read_from_its_sixteen_bytes() -> None:
    assert Field((2**90).to_bytes(16, "big")).integer() == 2**90


def test_at__other_error_of_ours__becomes_a_mismatch_there() -> None:
    def act() -> None:
        with at("items/3"):
            raise Malformed("no")

    assert path_of(act) == "items/3"
