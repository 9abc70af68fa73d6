"""Which files do pages load, and what is each one's hash? Everything comes from this server.

Files of others lie under `static/vendor` byte for byte as their npm packages hold them; the
manifest there names package, version, licence and SHA-384. Our own files are hashed when the
process starts. A browser runs no file whose hash differs from the one in the tag.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markupsafe import Markup

STATIC = Path(__file__).parent / "static"
PREFIX = "/static"
MANIFEST = STATIC / "vendor" / "manifest.json"


@dataclass(frozen=True)
class Vendored:
    """A file that somebody else wrote."""

    package: str
    version: str
    license: str
    licence_file: str
    path: str  # below static/vendor
    integrity: str


def vendored() -> Iterator[Vendored]:
    """All files of the manifest."""
    for entry in json.loads(MANIFEST.read_text()):
        about = (entry["package"], entry["version"], entry["license"], entry["licence_file"])
        for path, said in entry["files"].items():
            yield Vendored(*about, path, said["integrity"])


def integrity_of(data: bytes) -> str:
    """The value of an `integrity` attribute."""
    return f"sha384-{base64.b64encode(hashlib.sha384(data).digest()).decode()}"


@cache
def _pinned() -> Mapping[str, str]:
    return {f"vendor/{each.path}": each.integrity for each in vendored()}


@cache
def integrity(name: str) -> str:
    """Hash of a file below `static`: of the manifest where it is not ours."""
    return _pinned().get(name) or integrity_of((STATIC / name).read_bytes())


def script(name: str, *, module: bool = False) -> Markup:
    """The tag that runs a script, after the page was read."""
    kind = Markup(' type="module"') if module else Markup(" defer")
    return Markup('<script src="{}/{}" integrity="{}"{}></script>').format(
        PREFIX, name, integrity(name), kind
    )


def early_script(name: str) -> Markup:
    """The tag of a script that runs before anything is shown."""
    return Markup('<script src="{}/{}" integrity="{}"></script>').format(
        PREFIX, name, integrity(name)
    )


def preload(name: str) -> Markup:
    """The tag that fetches a module which another one imports, so that its hash is checked too."""
    return Markup('<link rel="modulepreload" href="{}/{}" integrity="{}">').format(
        PREFIX, name, integrity(name)
    )


def stylesheet(name: str) -> Markup:
    """The tag of a style sheet."""
    return Markup('<link rel="stylesheet" href="{}/{}" integrity="{}">').format(
        PREFIX, name, integrity(name)
    )
