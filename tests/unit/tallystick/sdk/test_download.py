"""Which blobs make the model that a poster downloads?"""

from collections.abc import Sequence

import pytest

from contracts.terms.errors import NotFound
from contracts.terms.ids import Digest, PeerId, StageIndex, StepNumber
from market.bodies.jobs import CheckpointsView, CheckpointView, UnpublishedView
from tallystick.sdk.parts import choose


def view(stage: int, step: int, blob: str, *, peers: int = 1, here: bool = True) -> CheckpointView:
    return CheckpointView(
        stage=StageIndex(stage),
        step=StepNumber(step),
        blob=Digest(blob.encode().ljust(32)),
        peers=tuple(PeerId(bytes([number]) * 32) for number in range(peers)),
        num_bytes=9 if here else None,
    )


def said(claims: Sequence[CheckpointView], *unpublished: UnpublishedView) -> CheckpointsView:
    return CheckpointsView(checkpoints=tuple(claims), unpublished=unpublished)


def test_choose__every_stage_at_one_step__is_taken_in_order() -> None:
    claims = [view(0, 60, "a", peers=3), view(1, 60, "b"), view(2, 60, "c", peers=2)]

    chosen = choose(said(claims), 3)

    assert (chosen.step, chosen.stages, chosen.disputed) == (60, tuple(claims), ())


def test_choose__last_step_lacks_a_stage__is_the_newest_that_has_all() -> None:
    claims = [
        view(0, 60, "a"), view(0, 50, "b"), view(1, 60, "c", here=False), view(1, 50, "d"),
        view(1, 40, "e"),
    ]  # fmt: skip

    assert choose(said(claims), 2).stages == (claims[1], claims[3])


def test_choose__members_differ__most_of_them_are_believed_and_it_is_said() -> None:
    claims = [view(0, 60, "a"), view(1, 60, "b", peers=2), view(1, 60, "c", peers=1)]

    chosen = choose(said(claims), 2)

    assert chosen.stages == (claims[0], claims[1])
    assert chosen.disputed == (1,)


def test_choose__as_many_name_another_index__none_is_believed() -> None:
    claims = [view(0, 60, "a"), view(1, 60, "b"), view(1, 60, "c"), view(0, 50, "d")]

    with pytest.raises(NotFound, match="members of stage 1 differ after step 60"):
        choose(said(claims), 2)


def test_choose__most_name_a_blob_that_nobody_uploaded__is_waited_for() -> None:
    claims = [view(0, 60, "a", peers=2, here=False), view(0, 60, "b")]

    with pytest.raises(NotFound, match="missing: stage 0"):
        choose(said(claims), 1)


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
        choose(said(claims), 2)


def test_choose__a_stage_could_not_be_uploaded__says_why_once() -> None:
    failed = [
        UnpublishedView(
            stage=StageIndex(1), step=StepNumber(60), peer=PeerId(bytes([number]) * 32),
            reason="no space",
        )
        for number in range(2)
    ]  # fmt: skip

    with pytest.raises(
        NotFound, match=r"stage 1\); weights of stage 1 were not published: no space$"
    ):
        choose(said([view(0, 60, "a")], *failed), 2)
