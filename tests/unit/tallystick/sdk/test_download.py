"""Which blobs make the model that a poster downloads?"""

import pytest

from contracts.terms.errors import NotFound
from contracts.terms.ids import Digest, PeerId, StageIndex, StepNumber
from market.api.schemas import CheckpointView
from tallystick.sdk.download import choose


def view(stage: int, step: int, blob: str, *, peers: int = 1, here: bool = True) -> CheckpointView:
    return CheckpointView(
        stage=StageIndex(stage),
        step=StepNumber(step),
        blob=Digest(blob.encode().ljust(32)),
        peers=tuple(PeerId(bytes([number]) * 32) for number in range(peers)),
        num_bytes=9 if here else None,
    )


def test_choose__every_stage_at_one_step__is_taken_in_order() -> None:
    claims = [view(0, 60, "a", peers=3), view(1, 60, "b"), view(2, 60, "c", peers=2)]

    chosen = choose(claims, 3)

    assert (chosen.step, chosen.stages, chosen.disputed) == (60, tuple(claims), ())


def test_choose__last_step_lacks_a_stage__is_the_newest_that_has_all() -> None:
    claims = [
        view(0, 60, "a"), view(0, 50, "b"), view(1, 60, "c", here=False), view(1, 50, "d"),
        view(1, 40, "e"),
    ]  # fmt: skip

    assert choose(claims, 2).stages == (claims[1], claims[3])


def test_choose__members_differ__most_of_them_are_believed_and_it_is_said() -> None:
    claims = [view(0, 60, "a"), view(1, 60, "b", peers=2), view(1, 60, "c", peers=1)]

    chosen = choose(claims, 2)

    assert chosen.stages == (claims[0], claims[1])
    assert chosen.disputed == (1,)


def test_choose__most_name_a_blob_that_nobody_uploaded__is_waited_for() -> None:
    claims = [view(0, 60, "a", peers=2, here=False), view(0, 60, "b")]

    with pytest.raises(NotFound, match="missing: stage 0"):
        choose(claims, 1)


@pytest.mark.parametrize(
    ("claims", "missing"),
    [
        ([], "stage 0, 1"),
        ([view(0, 60, "a")], "stage 1"),
        ([view(0, 60, "a", here=False), view(1, 60, "b")], "stage 0"),
    ],
)
def test_choose__a_stage_without_weights__not_found_by_number(
    claims: list[CheckpointView], missing: str
) -> None:
    with pytest.raises(NotFound, match=f"missing: {missing}"):
        choose(claims, 2)


def test_choose__stages_of_different_steps_only__not_found() -> None:
    with pytest.raises(NotFound, match="not there yet"):
        choose([view(0, 60, "a"), view(1, 50, "b")], 2)
