"""Are sites of the tests' network as separate as machines, and is a cut silent?"""

import subprocess

import pytest

from tests.support.namespaces import Site, network

LISTEN = """
import socket, sys
server = socket.create_server((sys.argv[1], 7000))
print("ready", flush=True)
sock, _ = server.accept()
while data := sock.recv(1): sock.sendall(data.upper())
"""
CALL = """
import socket, sys
sock = socket.create_connection((sys.argv[1], 7000), timeout=10)
print("ready", flush=True)
for line in sys.stdin:
    sock.settimeout(float(line))
    try:
        sock.sendall(b"a"), print(sock.recv(1).decode(), flush=True)
    except TimeoutError: print("silence", flush=True)
    except OSError as error: print(type(error).__name__, flush=True)
"""


def start(site: Site, script: str, address: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        site.command("python3", "-c", script, address),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@pytest.mark.root  # network namespaces
def test_network__site_is_cut_and_back__nobody_is_told_and_the_connection_lives_on() -> None:
    with network("here", "there") as sites:
        here, there = sites["here"], sites["there"]
        server = start(here, LISTEN, here.address)
        client = start(there, CALL, here.address)
        assert client.stdin and client.stdout

        def ask(seconds: float) -> str:
            assert client.stdin and client.stdout
            print(seconds, file=client.stdin, flush=True)
            return client.stdout.readline().strip()

        try:
            assert ask(60) == "A"
            with there.cut():
                assert ask(0.5) == "silence"
            assert (ask(60), ask(60)) == ("A", "A")
            assert here.bytes_sent() > 0
        finally:
            for process in (client, server):
                process.kill()
                process.communicate()
