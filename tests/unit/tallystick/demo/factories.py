"""A made-up job in which one was lazy and one accused falsely, for tests of the demo's report."""

from functools import cache

from contracts.terms.amounts import BaseUnits, Flops
from contracts.terms.ids import Digest, PeerId, StageIndex, StepNumber
from market.bodies.offers import PeerChecksView, RatesView, ReceivedView, ReputationView
from market.bodies.slashes import SlashState, SlashView
from tallystick.demo.cast import ACCUSER, LAZY
from tallystick.demo.checked import Checked
from tallystick.demo.verdicts import Distance, Hearing, Story, Verdicts
from tests.support.checked_history import honest
from tests.support.history import make_digest, make_session, make_wallet
from tests.unit.tallystick.sdk.test_convictions import slash as shown_slash
from verification.draws.cases import Case, Ruling, What

LIAR, SLANDERER, FAIR, OUT = (
    make_session(name).peer for name in ("liar", "slanderer", "fair", "out")
)


def story(doer: PeerId, first: PeerId, *whats: tuple[What, PeerId]) -> Story:
    far = Distance("gradient.norm relative_l2", 500_000_000, 100_000)
    subject, step = make_digest(doer + first), StepNumber(9)
    return Story(
        Case(subject, "work", doer, StageIndex(0), step, step, Flops(1), subject, doer),
        [Hearing(first, 0, "mismatch", far), Hearing(OUT, 1, "match", None)],
        [Ruling(what, subject, StepNumber(12), peer) for what, peer in whats],
    )


def heard_of(*stories: Story) -> dict[Digest, Story]:
    return {each.case.subject: each for each in stories}


def slash(state: SlashState) -> SlashView:
    return shown_slash(
        state,
        job=honest().spec.job(),
        account=make_wallet("liar").account,
        wanted=BaseUnits(5_000_000),
        amount=BaseUnits(2_500_000),
    )


def peer_checks() -> PeerChecksView:
    """Of the lazy one."""
    reputation = ReputationView(
        honesty=500, honesty_mean=5000, matches=1, mismatches=1, liveness=500_000, kept=1, missed=0
    )
    received = ReceivedView(drawn=3, open=0, matched=2, mismatched=1, unrepeated=0, missing=0)
    return PeerChecksView(
        peer=LIAR,
        account=make_wallet("liar").account,
        stage=None,
        peer_steps=9,
        rates=RatesView(least=300_000, mean=310_000, greatest=500_000),
        reports=4,
        missed=0,
        received=received,
        odds=(),
        stake=BaseUnits(5_000_000),
        stake_hours=1250,
        convicted_at=12,
        reputation=reputation,
    )


@cache
def checked() -> Checked:
    convicted = story(LIAR, FAIR, ("accused", LIAR), ("convicted", LIAR))
    accusation = story(FAIR, SLANDERER, ("accused", FAIR), ("contradicted", SLANDERER))
    return Checked(
        verdicts=Verdicts(heard_of(convicted, accusation), 1000, 300),
        names={LIAR: LAZY.name, SLANDERER: ACCUSER.name, FAIR: "provider-1", OUT: "auditor-1"},
        lazy=LIAR,
        accuser=SLANDERER,
        slashes=(slash("burned"),),
        peers=(peer_checks(),),
    )
