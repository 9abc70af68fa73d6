"""A cable as a program: `python -m tests.support.slow_cable SHARE SECONDS ONE OTHER`.

Passes Ethernet frames between two interfaces of its network namespace, both ways, each after so
many seconds, and drops a share of them, by a fixed seed. For machines whose kernel has no netem. It
says "ready" when it has begun.
"""

import os
import random
import selectors
import socket
import sys
import time
from collections import deque

ETH_P_ALL = 3
MAX_FRAME_BYTES = 65_536
OUTGOING = 4  # PACKET_OUTGOING: what we have sent ourselves
SO_RCVBUFFORCE = 33
UNREAD_BYTES = 64 * 2**20  # frames that come while we do not run
URGENT = -15  # as nice says it: the delay is to be the cable's, not that of its turn to run


def end_of(interface: str) -> socket.socket:
    """All frames that come in at an interface."""
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    end.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, UNREAD_BYTES)
    end.bind((interface, 0))
    return end


def main() -> None:
    """Pass frames for ever."""
    share, delay = float(sys.argv[1]), float(sys.argv[2])
    ends = [end_of(name) for name in sys.argv[3:5]]
    os.nice(URGENT)
    chance, selector = random.Random(17), selectors.DefaultSelector()
    for end, other in zip(ends, reversed(ends), strict=True):
        selector.register(end, selectors.EVENT_READ, other)
    under_way = deque[tuple[float, socket.socket, bytes]]()
    print("ready", flush=True)
    while True:
        wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else None
        for key, _ in selector.select(wait):
            assert isinstance(key.fileobj, socket.socket)
            frame, address = key.fileobj.recvfrom(MAX_FRAME_BYTES)
            if address[2] != OUTGOING and chance.random() >= share:
                under_way.append((time.monotonic() + delay, key.data, frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, other, frame = under_way.popleft()
            other.send(frame)


if __name__ == "__main__":
    main()
