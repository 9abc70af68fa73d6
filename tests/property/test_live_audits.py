"""What `job watch` shows of audits: whatever is ruled, no draw is lost and none counted twice."""

from hypothesis import given
from hypothesis import strategies as st

from market.bodies.events import RuledEvent
from tests.unit.tallystick.sdk.test_watch import ANN, BOB, OTHER, WORK, folded, ruled

RULINGS = st.builds(
    ruled,
    st.sampled_from(
        ["drawn", "settled", "unrepeated", "missing", "missed", "accused", "convicted", "slashable"]
    ),
    st.sampled_from([WORK, OTHER]),
    st.sampled_from([ANN, BOB]),
)


@given(st.lists(RULINGS, max_size=20))
def test_fold__any_rulings__every_draw_is_open_or_has_one_outcome(
    rulings: list[RuledEvent],
) -> None:
    audits = folded(*rulings).audits

    closed = audits.matched + audits.mismatched + audits.unrepeated + audits.missing
    assert audits.drawn == closed + len(audits.open)
