"""Files of secrets: made once, whole, also without hard links; who may read them is reported."""

import errno
import os
from pathlib import Path

import pytest

from contracts.keys.files import create_secret, load_or_create_token, read_secret
from contracts.terms.errors import Malformed, Refused


@pytest.fixture(params=[None, errno.EPERM, errno.EACCES, errno.EOPNOTSUPP], ids=str)
def links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system as it is, and one without hard links: FAT, Android, a network share."""

    def refuse(source: Path, target: Path) -> None:
        raise OSError(request.param, os.strerror(request.param))

    if request.param is not None:
        monkeypatch.setattr(os, "link", refuse)


@pytest.mark.usefixtures("links")
def test_secret__created__is_whole_private_and_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "key"
    create_secret(path, b"first")

    with pytest.raises(Refused, match="never overwritten"):
        create_secret(path, b"second")

    assert read_secret(path) == b"first"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.usefixtures("links")
def test_secret__folder_that_cannot_be__names_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(Refused, match="Not a directory"):
        create_secret(tmp_path / "file" / "key", b"x")


@pytest.mark.usefixtures("links")
def test_token__asked_twice__stays_the_same(tmp_path: Path) -> None:
    first = load_or_create_token(tmp_path / "t")

    assert load_or_create_token(tmp_path / "t") == first and len(first) == 64


@pytest.mark.parametrize("data", [b"", b"\n", b"\xef\xbb\xbfabc", b"a\0b\0"])
def test_token__file_that_holds_none__is_malformed(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(data)

    with pytest.raises(Malformed, match="holds no token"):
        load_or_create_token(tmp_path / "t")


@pytest.mark.parametrize(("mode", "times"), [(0o600, 0), (0o400, 0), (0o640, 1), (0o604, 1)])
def test_secret__that_others_may_read__is_reported_once(
    mode: int, times: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "key"
    create_secret(path, b"x")
    path.chmod(mode)

    for _ in range(2):
        read_secret(path)

    said = [each.getMessage() for each in caplog.records]
    assert len(said) == times
    assert all(f"mode {mode:04o}): chmod 600" in each for each in said)
