"""Which blobs make the model that a poster downloads?"""

from collections.abc import Sequence

import pytest

from contracts.terms.errors import NotFound
from contracts.terms.ids import Digest, PeerId, StageIndex, StepNumber
from market.bodies.jobs import CheckpointsView, CheckpointView, UnpublishedView
from tallystick.sdk.parts import Wanted, choose, last_step
from tests.support.history import make_spec


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


def wanted(step: int | None = None, *, last: int | None = 60, peers: int = 1) -> Wanted:
    """Of a job of two stages, which has ended after step 60."""
    batch = make_spec(
        steps=60, stages=2, peers_per_stage=peers, checkpoint_every=5, publish_every=10
    ).batch
    return Wanted(batch, step, last)


def test_choose__last_step_lacks_a_stage__is_the_newest_that_has_all() -> None:
    claims = [
        view(0, 60, "a"), view(0, 50, "b"), view(1, 60, "c", here=False), view(1, 50, "d"),
        view(1, 40, "e"),
    ]  # fmt: skip

    assert choose(said(claims), wanted()).stages == (claims[1], claims[3])


@pytest.mark.parametrize(
    ("state", "step", "last"), [("finished", 60, 60), ("failed", 40, None), ("running", 40, None)]
)
def test_choose__job_failed_and_a_member_alone_names_its_newest_step__is_what_most_published(
    state: str, step: int, last: int | None
) -> None:
    claims = [view(stage, at, f"{stage}", peers=peers) for stage in (0, 1)
              for at, peers in ((60, 1), (40, 2))]  # fmt: skip

    assert last_step(state, 60) == last
    assert choose(said(claims), wanted(last=last, peers=3)).step == step


def test_choose__members_differ__most_of_them_are_believed_and_it_is_said() -> None:
    claims = [view(0, 60, "a"), view(1, 60, "b", peers=2), view(1, 60, "c", peers=1)]

    chosen = choose(said(claims), wanted())

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
        choose(said(claims), wanted())


def test_choose__a_stage_could_not_be_uploaded__says_why_once() -> None:
    failed = [
        UnpublishedView(
            stage=StageIndex(1), step=StepNumber(60), peer=PeerId(bytes([number]) * 32),
            reason="no space",
        )
        for number in range(2)
    ]  # fmt: skip
    words = r"stage 1\); weights of stage 1 after step 60 were not published: no space$"

    with pytest.raises(NotFound, match=words):
        choose(said([view(0, 60, "a")], *failed), wanted())


def test_choose__a_step_is_asked_for__is_that_one_or_says_which_there_are() -> None:
    claims = [view(stage, step, "a") for step in (40, 30, 20) for stage in (0, 1)]
    claims.append(view(0, 50, "a"))

    assert choose(said(claims), wanted(last=None)).step == 40
    assert choose(said(claims), wanted(20)).step == 20
    with pytest.raises(NotFound, match=r"after step 50 are not .*stage 1\); .*step 40, 30, 20$"):
        choose(said(claims), wanted(50))
    with pytest.raises(NotFound, match=r"after step 35 .*after each 10 steps and .*40, 30, 20$"):
        choose(said(claims), wanted(35))


def test_choose__job_runs_and_a_minority_names_a_step__others_are_waited_for() -> None:
    liar = [view(stage, 50, "x", peers=1) for stage in (0, 1)]
    most = [view(stage, 40, "a", peers=2) for stage in (0, 1)]

    assert choose(said([*liar, *most]), wanted(last=None, peers=3)).step == 40
    assert choose(said([*liar, *most]), wanted(last=50, peers=3)).step == 50  # nobody else is left
    with pytest.raises(NotFound, match=r"missing: stage 0, 1.*stage 1 after step 50 only 1 of 2"):
        choose(said(liar), wanted(last=None, peers=3))
