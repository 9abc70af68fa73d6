"""Members as others are told of them: keys, stages and addresses."""

from contracts.terms.ids import StageIndex
from training.coordinator.book import Book
from training.swarm.state import Member
from training.transport import calls


def member_view(book: Book, member: Member) -> calls.MemberView:
    """What others need to know to reach and trust a member."""
    key = book.key_of(member.peer)
    return calls.MemberView(session_key=key, stage=member.stage, address=member.address)


def member_views(book: Book, stage: StageIndex | None = None) -> tuple[calls.MemberView, ...]:
    """All members, or those of one stage."""
    members = sorted(book.state.members.values(), key=lambda member: member.peer)
    return tuple(member_view(book, each) for each in members if stage in (None, each.stage))
