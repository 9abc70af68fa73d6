"""Order, subsets and pauses of services: values in, values out."""

import pytest

from contracts.terms.errors import InvariantBroken, Malformed
from tallystick.up.spec import Backoff, ServiceSpec, Step, after, check_order, subset


def service(name: str, *needs: str) -> ServiceSpec:
    return ServiceSpec(name=name, argv=("true",), depends_on=needs)


def test_failures__ran_long_enough__is_forgiven() -> None:
    backoff = Backoff(stable_after=10)

    assert backoff.failures(7, ran_for=9.9) == 8
    assert backoff.failures(7, ran_for=10) == 1


def test_subset__needs_outside__are_taken_as_met() -> None:
    items = (service("a"), Step(name="b", depends_on=("a",)), service("c", "a", "b"))

    kept = subset(items, ("a", "c"))

    assert [(item.name, item.depends_on) for item in kept] == [("a", ()), ("c", ("a",))]


def test_subset__unknown_name__is_malformed() -> None:
    with pytest.raises(Malformed, match="nothing"):
        subset((service("a"),), ("nothing",))


def test_after__roots__need_the_first() -> None:
    items = after((service("a"), service("b", "a")), service("first"))

    assert [(item.name, item.depends_on) for item in items] == [
        ("first", ()),
        ("a", ("first",)),
        ("b", ("a",)),
    ]
    check_order(items)


@pytest.mark.parametrize(
    "items",
    [(service("a", "b"), service("b")), (service("a"), service("a")), (service("a", "a"),)],
)
def test_check_order__need_not_before_or_name_twice__is_our_bug(
    items: tuple[ServiceSpec, ...],
) -> None:
    with pytest.raises(InvariantBroken):
        check_order(items)
