"""Do lines of pay sum to what each seal says, whatever becomes of the work?"""

from contracts.governance.job import JobHistory, follow
from contracts.governance.vesting import forfeited_by
from contracts.terms.messages import Seal
from contracts.terms.signatures import Signed
from tests.support.checked_history import BOB, honest
from tests.support.dockets import begin_checked
from verification.earnings import Earnings


def check(earnings: Earnings, history: JobHistory) -> set[str]:
    """Lines of every account are what its pay leaf says; where base units are."""
    record, newest = history.record, history.newest
    assert record is not None and newest is not None
    leaves = {leaf.account: leaf for leaf in newest.pay}
    lost = forfeited_by(record.pay, record.pay_leases())
    held = set[str]()
    for account in {*earnings.lines, *leaves}:
        lines, leaf = earnings.of_account(account), leaves.get(account)
        sums = {
            name: sum(each.amount for each in lines if each.held == name)
            for name in ("waiting", "frozen", "forfeited", "vested")
        }
        assert sum(sums.values()) == (0 if leaf is None else leaf.earned)
        assert sums["vested"] == (0 if leaf is None else leaf.vested)
        assert sums["frozen"] == earnings.frozen(account)
        assert sums["forfeited"] == earnings.forfeited(account) == lost[account]
        place = 0
        for each in sorted(
            (e for e in lines if e.held in ("vested", "waiting")),
            key=lambda e: (e.held == "waiting", e.start, e.start + e.amount),
        ):
            assert each.start == place, "an interval is missing"
            place += each.amount
        held |= {name for name, amount in sums.items() if amount}
    return held


def test_lines__whole_checked_job_with_a_liar__are_what_every_seal_says() -> None:
    maker, earnings, held = honest(), Earnings(), set[str]()
    history = JobHistory(maker.domain, begin_checked)
    for item in maker.items:
        under = [signed.message for signed in history.pending.values()]
        history = follow(history, item)
        if isinstance(item, Signed) and isinstance(item.message, Seal):
            assert history.record is not None and history.newest is not None
            earnings.note(history.record, history.newest, under)
            held |= check(earnings, history)

    assert held == {"waiting", "frozen", "forfeited", "vested"}
    liar = maker.members[BOB].wallet.account
    assert {each.line.lost_by for each in earnings.of_account(liar)} >= {"convicted"}
    of_peers = [earnings.of_peer(member.session.peer) for member in maker.members]
    assert all(each.earned == sum(each[1:]) for each in of_peers)
