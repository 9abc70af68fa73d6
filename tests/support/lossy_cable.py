"""A cable that loses packets, as a program: `python -m tests.support.lossy_cable SHARE ONE OTHER`.

Passes Ethernet frames between two interfaces of its network namespace, both ways, and drops a share
of them, by a fixed seed. For machines whose kernel has no netem. It says "ready" when it has begun.
"""

import random
import selectors
import socket
import sys

ETH_P_ALL = 3
MAX_FRAME_BYTES = 65_536
OUTGOING = 4  # PACKET_OUTGOING: what we have sent ourselves


def end_of(interface: str) -> socket.socket:
    """All frames that come in at an interface."""
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    end.bind((interface, 0))
    return end


def main() -> None:
    """Pass frames for ever."""
    share, ends = float(sys.argv[1]), [end_of(name) for name in sys.argv[2:4]]
    chance, selector = random.Random(17), selectors.DefaultSelector()
    for end, other in zip(ends, reversed(ends), strict=True):
        selector.register(end, selectors.EVENT_READ, other)
    print("ready", flush=True)
    while True:
        for key, _ in selector.select():
            assert isinstance(key.fileobj, socket.socket)
            frame, address = key.fileobj.recvfrom(MAX_FRAME_BYTES)
            if address[2] != OUTGOING and chance.random() >= share:
                key.data.send(frame)


if __name__ == "__main__":
    main()
