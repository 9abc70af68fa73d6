"""A bundle on disk: whole or not there, equal bytes for equal contents, untrusted when read."""

import os
import stat
import zipfile
from pathlib import Path

import pytest

from contracts.terms.errors import AuditMismatch, NotFound, Refused, TooLarge, Unreadable
from contracts.terms.ids import Digest
from tests.support.bundles import (
    Story,
    made_digest,
    make_story,
    shown,
    sum_papers,
    work_papers,
    write,
)
from tests.support.dockets import begin_checked
from verification.auditing import bundle_file
from verification.auditing.bundle_bytes import BundledBytes, show
from verification.auditing.bundle_file import PAPERS, WEIGHTS, BundleFile, write_bundle


@pytest.fixture(scope="module")
def story() -> Story:
    return make_story()


@pytest.fixture(scope="module")
def whole(story: Story, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(work_papers(story), story, tmp_path_factory.mktemp("whole") / "a.bundle")


def refused(path: Path) -> str:
    """The path at which a file is refused, or what became of it."""
    with pytest.raises((AuditMismatch, Unreadable)) as caught, BundleFile(path) as file:
        BundledBytes(show(file, begin_checked), file, made_digest).check()
    return str(caught.value.data.get("path", caught.value.message))


def test_bundle__of_a_sum__has_no_weights(story: Story, tmp_path: Path) -> None:
    path = write(sum_papers(story), story, tmp_path / "sum.bundle")

    with BundleFile(path) as file:
        assert show(file, begin_checked).case.kind == "bucket"
    assert WEIGHTS not in zipfile.ZipFile(path).namelist()


def test_write_bundle__twice__equal_bytes_in_order_and_nothing_beside(
    story: Story, whole: Path, tmp_path: Path
) -> None:
    again = write(work_papers(story), story, tmp_path / "b" / "c.bundle")

    names = zipfile.ZipFile(again).namelist()
    assert again.read_bytes() == whole.read_bytes()
    assert names == sorted(names) and {PAPERS, WEIGHTS} <= set(names)
    assert sorted(each.name for each in again.parent.iterdir()) == ["c.bundle", "c.made"]
    assert stat.S_ISREG(again.stat().st_mode)


def test_write_bundle__disk_is_full__leaves_what_was_there(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.bundle"
    path.write_bytes(b"before")
    (tmp_path / "blob").write_bytes(b"bytes")

    def full(_descriptor: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("verification.auditing.bundle_file.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_bundle(path, b"papers", None, {Digest(bytes(32)): tmp_path / "blob"})

    assert path.read_bytes() == b"before"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a.bundle", "blob"]


def test_write_bundle__larger_than_any__is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_file, "MAX_BUNDLE_BYTES", 10)

    with pytest.raises(TooLarge):
        write_bundle(tmp_path / "a.bundle", b"eleven bytes", None, {})

    assert not list(tmp_path.iterdir())


def test_show__other_bytes_under_a_right_name__are_refused_there(
    story: Story, tmp_path: Path
) -> None:
    papers = work_papers(story)
    one, other = sorted(shown(papers).wanted)[:2]

    path = write(papers, story, tmp_path / "a.bundle", **{one.hex(): b"a tensor of somebody else"})

    assert refused(path) == f"blobs/{one.hex()}"
    assert other != one


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ("without papers", PAPERS),
        ("without weights", WEIGHTS),
        ("with something more", "blobs/notes"),
        ("with a name twice", "the file is a zip that was packed by something else"),
        ("compressed", "the file is a zip that was packed by something else"),
        ("with a comment", "the bundle is cut or longer than written"),
        ("cut short", "the bundle is cut or longer than written"),
        ("a byte changed", "the bundle was changed on its way (Bad CRC-32"),
        ("papers of nobody", "the file is no bundle"),
    ],
)
def test_show__zip_that_is_no_bundle__is_refused_with_what_is_wrong(
    whole: Path, tmp_path: Path, change: str, path: str
) -> None:
    made = tmp_path / "a.bundle"
    skipped = {"without papers": PAPERS, "without weights": WEIGHTS}.get(change)
    kind = zipfile.ZIP_DEFLATED if change == "compressed" else zipfile.ZIP_STORED
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(made, "w", kind) as target:
        for name in source.namelist():
            if name != skipped:
                is_other = change == "papers of nobody" and name == PAPERS
                target.writestr(name, b"\x80" if is_other else source.read(name))
        if change == "with something more":
            target.writestr("blobs/notes", b"")
        if change == "with a comment":
            target.comment = b"more"
        if change == "with a name twice":
            with pytest.warns(UserWarning, match="Duplicate"):
                target.writestr(WEIGHTS, b"others")
    if change == "cut short":
        made.write_bytes(made.read_bytes()[:-1])

    if change == "a byte changed":
        made.write_bytes(made.read_bytes().replace(b"job_spec", b"job_Spec", 1))

    assert refused(made).startswith(path)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b"PK\x05\x06" + bytes(18), "is no such file"),
        (b"a" * 1000, "is no such file"),
        (b"PK\x03\x04", "cut or longer than written (4 bytes)"),
        (b"\x1f\x8b\x08", "compressed by gzip"),
    ],
)
def test_bundle_file__no_zip__is_no_bundle(tmp_path: Path, data: bytes, said: str) -> None:
    path = tmp_path / "a.bundle"
    path.write_bytes(data)

    assert said in refused(path)


def test_bundle_file__nothing_or_no_file__says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        BundleFile(tmp_path / "none")
    for path in (tmp_path, Path("/dev/zero"), tmp_path / ("x" * 5000)):
        with pytest.raises(Refused):
            BundleFile(path)


def test_bundle_file__larger_than_any__is_not_read(
    whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_file, "MAX_BUNDLE_BYTES", 10)
    monkeypatch.setattr(bundle_file, "MAX_MEMBERS", 0)

    with pytest.raises(TooLarge):
        BundleFile(whole)


def test_bundle_file__blob_over_its_bound__is_refused(
    story: Story, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_file, "MAX_BLOB_BYTES", 3)

    assert refused(whole).startswith("blobs/")


def test_rows__of_an_item__are_what_its_leaf_names(story: Story, whole: Path) -> None:
    with BundleFile(whole) as file:
        held = BundledBytes(show(file, begin_checked), file, made_digest)
        claim = story.claims["cem"].claim
        item = claim.numbers[0]

        assert held.rows(item) == repr((f"rows/{claim.group}/{item}",)).encode()
        with pytest.raises(NotFound):
            held.blob(Digest(bytes(32)))
