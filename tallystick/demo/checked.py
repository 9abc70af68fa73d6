"""The checking part of the demo's report: verdicts, slashes, what the audits cost. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from contracts.terms.amounts import format_tokens, in_tokens
from contracts.terms.ids import Address, PeerId
from contracts.terms.messages import MILLION
from market.bodies.offers import PeerChecksView
from market.bodies.slashes import SlashView
from tallystick.demo.cast import ACCUSER, LAZY
from tallystick.demo.verdicts import Hearing, Story, Verdicts

_COLUMNS = (
    "name            audits  received matched mismatch unsettled  mean q  honesty      stake   "
    "hours"
)
_ROUNDS = ("first auditor", "second auditor", "third auditor", "confirmed outside by")


@dataclass(frozen=True)
class Checked:
    """What checking came to."""

    verdicts: Verdicts
    names: Mapping[PeerId, str]  # of everybody who worked or audited
    lazy: PeerId
    accuser: PeerId
    slashes: Sequence[SlashView]
    peers: Sequence[PeerChecksView]

    def problems(self) -> Iterator[str]:
        """What does not hold."""
        convicted = self.verdicts.convicted
        if self.lazy not in convicted:
            yield f"{LAZY.name} lied and was not convicted"
        accusations = (s for s in self.verdicts.stories if s.hearings[0].auditor == self.accuser)
        if not any(story.ruling("contradicted") for story in accusations):
            yield f"{ACCUSER.name} accused falsely and was not contradicted"
        for peer in convicted.keys() - {self.lazy, self.accuser}:
            yield f"{self.names.get(peer, peer.hex())} is honest and was convicted"
        if not any(each.state == "burned" for each in self.slashes):
            yield "no stake was slashed"

    def cheats(self) -> Iterator[str]:
        """Who was found to cheat, at what, and the stake that it lost for it."""
        taken, did = Counter[Address](), dict[PeerId, str]()
        for slash in self.slashes:
            taken[slash.account] += slash.amount if slash.state == "burned" else 0
        for story in self.verdicts.stories:
            for ruling in story.rulings:
                if ruling.what in ("convicted", "contradicted"):
                    is_doer = ruling.peer == story.case.doer
                    did[ruling.peer] = "signed false work" if is_doer else "accused another falsely"
        accounts = {each.peer: each.account for each in self.peers}
        for peer, what in sorted(did.items(), key=lambda each: self._name(each[0])):
            stake = taken[accounts[peer]] if peer in accounts else 0
            lost = f"{in_tokens(stake)} tokens of stake" if stake else "no stake"
            yield f"{self._name(peer)} {what} and lost {lost}"

    @property
    def num_repeated(self) -> int:
        """Pieces of work that others did again."""
        return sum(each.received.matched + each.received.mismatched for each in self.peers)

    @property
    def extra(self) -> float:
        """Work of the audits, in parts of the sealed work."""
        return self.verdicts.replayed / self.verdicts.work

    def lines(self) -> Iterator[str]:
        """This part of the report."""
        verdicts = self.verdicts
        yield f"audits              {self.extra:.1%} extra compute, replays over sealed work"
        yield f"checks              {_COLUMNS}"
        for peer in sorted(self.peers, key=lambda each: self._name(each.peer)):
            yield f"                    {self._row(peer)}"
        yield (
            "                    audits: reports of its own; honesty: 5 % quantile; hours: of its "
            "income here that its stake is worth"
        )
        for story in verdicts.stories:
            yield from self._story(story)
        convicted = verdicts.convicted.keys() - {self.lazy, self.accuser}
        yield f"honest convicted    {', '.join(map(self._name, convicted)) or 'none'}"
        for slash in self.slashes:
            yield from _slash(slash)

    def _row(self, peer: PeerChecksView) -> str:
        got = peer.received
        rate = f"{peer.rates.mean / MILLION:.3f}" if peer.rates else "-"
        hours = "-" if peer.stake_hours is None else f"{peer.stake_hours / 1000:.2f}"
        return (
            f"{self._name(peer.peer):12} {peer.reports:8} {got.drawn:9} {got.matched:7} "
            f"{got.mismatched:8} {got.unrepeated + got.missing + got.open:9} {rate:>7} "
            f"{peer.reputation.honesty / 10_000:9.3f} {format_tokens(peer.stake):>10} {hours:>7}"
        )

    def _story(self, story: Story) -> Iterator[str]:
        case = story.case
        yield (
            f"accused             {self._name(case.doer)}: {case.kind} of step {case.step}, "
            f"stage {case.stage}"
        )
        for hearing in story.hearings:
            yield f"                    {_ROUNDS[hearing.round]} {self._hearing(hearing)}"
        for ruling in story.rulings:
            if ruling.what in ("contradicted", "convicted", "slashable", "unconfirmed"):
                yield (
                    f"                    {self._name(ruling.peer)} is {ruling.what} "
                    f"in the seal of step {ruling.step}"
                )

    def _hearing(self, hearing: Hearing) -> str:
        said, far = f"{self._name(hearing.auditor)}: {hearing.verdict}", hearing.farthest
        if far is None:
            return said
        return f"{said}, {far.name} {far.value / 1e9:.2g} of {far.limit / 1e9:.2g} allowed"

    def _name(self, peer: PeerId) -> str:
        return self.names.get(peer, peer.hex()[:12])


def _slash(slash: SlashView) -> Iterator[str]:
    transaction = f", transaction 0x{slash.ended_by.hex()}" if slash.ended_by else ""
    yield (
        f"slash               {slash.state}: {format_tokens(slash.amount)} tokens of "
        f"0x{slash.account.hex()}{transaction}"
    )
