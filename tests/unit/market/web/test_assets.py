"""Is everything that a page loads what its tag says, and what its package held?"""

import json
import re

import pytest

from market.web import assets
from market.web.assets import MANIFEST, STATIC, integrity_of, pinned
from market.web.headers import POLICY, is_page
from market.web.rendering import environment

TEMPLATES = environment().list_templates()
TAG = re.compile(r"<(?:script|link|style)\b[^>]*>")
NOT_HASHED = '<link rel="icon" href="/static/icon.svg" type="image/svg+xml">'


def test_vendored__folder__holds_the_files_of_the_manifest_and_licences() -> None:
    folder, hashes = STATIC / "vendor", pinned()
    licences = {f"vendor/{each['licence_file']}" for each in json.loads(MANIFEST.read_text())}
    there = {str(path.relative_to(STATIC)) for path in folder.rglob("*") if path.is_file()}

    assert there == {*hashes, *licences, "vendor/manifest.json"}
    assert {name: integrity_of((STATIC / name).read_bytes()) for name in hashes} == hashes
    assert {name: assets.integrity(name) for name in hashes} == hashes


@pytest.mark.parametrize("name", TEMPLATES)
def test_template__tags__come_from_the_functions_that_add_hashes(name: str) -> None:
    loader = environment().loader
    assert loader is not None
    source, _, _ = loader.get_source(environment(), name)

    assert [tag for tag in TAG.findall(source) if tag != NOT_HASHED] == []
    assert "|safe" not in source.replace(" ", "") and "style=" not in source
    assert re.findall(r"\son[a-z]+=", source) == []


def test_scripts__our_own__make_no_markup_from_text() -> None:
    ours = [path.read_text() for path in STATIC.glob("*.js")]

    assert [text for text in ours if "innerHTML" in text or "eval(" in text] == []


def test_policy__nothing_inline_and_nobody_else__is_allowed() -> None:
    assert "unsafe" not in POLICY and "http" not in POLICY
    assert POLICY.startswith("default-src 'none'")


@pytest.mark.parametrize(
    ("path", "is_for_people"),
    [("/", True), ("/v1", False), ("/v1/jobs", False), ("/v1x", True), ("/jobs/v1/", True)],
)
def test_is_page__path__decides(path: str, is_for_people: bool) -> None:
    assert is_page(path) == is_for_people
