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


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ([], "missing: stage 0, 1"),
        ([view(0, 60, "a")], "missing: stage 1"),
        ([view(0, 60, "a", here=False), view(1, 60, "b")], "missing: stage 0"),
        (
            [view(0, 60, "a", peers=2, here=False), view(0, 60, "b"), view(1, 60, "c")],
            "missing: stage 0",  # most name what nobody uploaded: it is waited for
        ),
        (
            [view(0, 60, "a"), view(1, 60, "b"), view(1, 60, "c"), view(0, 50, "d")],
            "members of stage 1 differ after step 60",  # as many name another: none is believed
        ),
    ],
)
def test_choose__a_stage_without_weights_that_are_believed__is_not_found(
    claims: list[CheckpointView], why: str
) -> None:
    with pytest.raises(NotFound, match=why):
        choose(said(claims), 2)


def test_choose__a_stage_could_not_be_uploaded__says_why_once() -> None:
    failed = [
        UnpublishedView(
            stage=StageIndex(1), step=StepNumber(60), peer=PeerId(bytes([number]) * 32),
            reason="no space",
        )
        for number in range(2)
    ]  # fmt: skip
    words = r"stage 1\); weights of stage 1 were not published: no space$"

    with pytest.raises(NotFound, match=words):
        choose(said([view(0, 60, "a")], *failed), 2)
