"""What an agent signs to say that it, or a peer of its, is alive."""

import time

from contracts.keys.wallet import Session
from contracts.terms.ids import Digest
from contracts.terms.moments import UnixMillis
from market.bodies.offers import Heartbeat
from market.bodies.signing import heartbeat_digest


def heartbeat(session: Session, subject: Digest) -> Heartbeat:
    """Alive now: signed under the session key of an offer, a lease or an auditor."""
    at = UnixMillis(time.time_ns() // 1_000_000)
    signature = session.private_key.sign(heartbeat_digest(subject, at))
    return Heartbeat(at=at, signature=signature)
