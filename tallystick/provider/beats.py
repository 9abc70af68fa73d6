"""What an agent signs to say that it, or a peer of its, is alive."""

import time

from contracts.keys.wallet import Session
from contracts.terms.ids import Digest
from contracts.terms.moments import UnixMillis
from market import bodies


def heartbeat(session: Session, subject: Digest) -> bodies.Heartbeat:
    """Alive now: signed under the session key of an offer, a lease or an auditor."""
    at = UnixMillis(time.time_ns() // 1_000_000)
    signature = session.private_key.sign(bodies.heartbeat_digest(subject, at))
    return bodies.Heartbeat(at=at, signature=signature)
