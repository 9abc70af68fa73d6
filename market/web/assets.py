"""Which files do pages load, and what is each one's hash? Everything comes from this server.

Files of others lie under `static/vendor` byte for byte as their npm packages hold them; the
manifest there names package, version, licence and SHA-384. Our own files are hashed when the
process starts. A browser runs no file whose hash differs from the one in the tag.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from markupsafe import Markup

STATIC = Path(__file__).parent / "static"
PREFIX = "/static"
MANIFEST = STATIC / "vendor" / "manifest.json"


def integrity_of(data: bytes) -> str:
    """The value of an `integrity` attribute."""
    return f"sha384-{base64.b64encode(hashlib.sha384(data).digest()).decode()}"


@cache
def pinned() -> Mapping[str, str]:
    """Hashes of the manifest, by the file's name below `static`."""
    return {
        f"vendor/{path}": said["integrity"]
        for entry in json.loads(MANIFEST.read_text())
        for path, said in entry["files"].items()
    }


@cache
def integrity(name: str) -> str:
    """Hash of a file below `static`: of the manifest where it is not ours."""
    return pinned().get(name) or integrity_of((STATIC / name).read_bytes())


def script(name: str, *, module: bool = False) -> Markup:
    """The tag that runs a script, after the page was read."""
    kind = 'type="module"' if module else "defer"
    return _tag(f'<script src="{{}}" integrity="{{}}" {kind}></script>', name)


def early_script(name: str) -> Markup:
    """The tag of a script that runs before anything is shown."""
    return _tag('<script src="{}" integrity="{}"></script>', name)


def preload(name: str) -> Markup:
    """The tag that fetches a module which another one imports, so that its hash is checked too."""
    return _tag('<link rel="modulepreload" href="{}" integrity="{}">', name)


def stylesheet(name: str) -> Markup:
    """The tag of a style sheet."""
    return _tag('<link rel="stylesheet" href="{}" integrity="{}">', name)


def _tag(form: str, name: str) -> Markup:
    return Markup(form).format(f"{PREFIX}/{name}", integrity(name))
