"""What `job watch` shows of audits: whatever is ruled, no draw is lost and none counted twice."""

from hypothesis import given
from hypothesis import strategies as st

from contracts.terms.ids import Digest, JobId, PeerId, StepNumber
from contracts.terms.moments import UnixMillis
from market.bodies.events import JobEvent, RuledEvent
from tallystick.sdk.watch import JobLive, fold

JOB = JobId(bytes(32))
ANN, BOB = PeerId(bytes([1]) * 32), PeerId(bytes([2]) * 32)
WORK, OTHER = Digest(bytes([3]) * 32), Digest(bytes([4]) * 32)


def folded(*events: JobEvent) -> JobLive:
    live = JobLive(JOB)
    for number, event in enumerate(events, start=1):
        live = fold(live, number, event)
    return live


def at(seconds: int) -> UnixMillis:
    return UnixMillis(1000 * seconds)


def ruled(what: str, subject: Digest = WORK, about: PeerId = ANN) -> RuledEvent:
    return RuledEvent.model_validate(
        {
            "at": at(1),
            "what": what,
            "subject": subject,
            "step": StepNumber(2),
            "peer": about,
            "by": (),
        }
    )


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
