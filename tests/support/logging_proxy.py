"""A small HTTP proxy, in a process of its own.

`python -m tests.support.logging_proxy LOG USER:PASSWORD HOST=URL...`

It asks URL for what it is asked of HOST, lets nobody through a tunnel, and writes the first line of
each request to LOG. The first line that it prints is its port.
"""

import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import PIPE, Popen
from urllib.parse import urlsplit

USER, PASSWORD = "ann", "s3cret"


@dataclass(frozen=True)
class Proxy:
    """A proxy that runs."""

    port: int
    log: Path

    def url(self, password: str = PASSWORD) -> str:
        """As a variable names it."""
        return f"http://{USER}:{password}@127.0.0.1:{self.port}"

    def asked(self) -> list[str]:
        """The first line of each request."""
        return self.log.read_text().splitlines()


@contextmanager
def logging_proxy(log: Path, **host_to_url: str) -> Iterator[Proxy]:
    """A proxy in a process of its own; hosts are called `name.example`."""
    log.touch()
    hosts = [f"{name}.example={url}" for name, url in host_to_url.items()]
    words = [sys.executable, "-m", __name__, str(log), f"{USER}:{PASSWORD}", *hosts]
    with Popen(words, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Proxy(int(process.stdout.readline()), log)
        finally:
            process.kill()


def _serve(log: Path, credentials: str, hosts: list[str]) -> None:
    host_to_url = dict(each.split("=", 1) for each in hosts)
    wanted = f"Basic {b64encode(credentials.encode()).decode()}"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with log.open("a") as file:
                file.write(self.requestline + "\n")
            if self.headers["proxy-authorization"] != wanted:
                self.send_error(407)
            elif self.command == "CONNECT":
                self.send_error(403)
            else:
                self._pass_on()

        do_POST = do_PUT = do_CONNECT = do_GET

        def _pass_on(self) -> None:
            asked = urlsplit(self.path)
            there = HTTPConnection(urlsplit(host_to_url[asked.hostname or ""]).netloc)
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            there.request(
                self.command, asked.path or "/", body, {"Content-Type": "application/json"}
            )
            answer = there.getresponse()
            content = answer.read()
            self.send_response(answer.status)
            self.send_header("content-type", answer.headers["content-type"])
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        print(server.server_port, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
