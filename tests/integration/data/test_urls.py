"""Data behind `http://` and `s3://`: real servers on this machine."""

import re
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from contracts.terms.errors import NotFound, Refused, ServiceUnreachable
from tests.support import preparing
from training.data.manifest import Manifest
from training.data.prepare import prepare_data, recipe_of

TEXTS = preparing.texts(2000)


class Quiet(SimpleHTTPRequestHandler):
    """Python's own server, which knows no ranges."""

    def log_message(self, *_: object) -> None:
        """Nothing."""


class Ranged(Quiet):
    """The same with ranges; whoever shows no token is forbidden."""

    def do_GET(self) -> None:
        """A file, or the range that is asked for."""
        if "token=secret" not in self.path:
            self.send_error(403)
            return
        data = Path(self.translate_path(self.path)).read_bytes()
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked is None:
            super().do_GET()
            return
        start, end = int(asked[1]), min(int(asked[2]) + 1, len(data))
        self.send_response(206)
        self.send_header("Content-Length", str(end - start))
        self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        self.end_headers()
        self.wfile.write(data[start:end])


@pytest.fixture(params=[Quiet, Ranged])
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """A server of the files in `tmp_path`, by its URL."""
    made = ThreadingHTTPServer(("127.0.0.1", 0), partial(request.param, directory=str(tmp_path)))
    thread = Thread(target=made.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{made.server_port}"
    made.shutdown()
    thread.join()
    made.server_close()


def manifest_of(folder: Path, *names: str) -> Manifest:
    return prepare_data(recipe_of(names), folder).manifest


def test_prepare__web_server__is_read_as_files_and_no_secret_is_told(
    server: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    has_ranges = request.node.callspec.params["server"] is Ranged
    preparing.write_json_lines(tmp_path / "a.jsonl", TEXTS)
    preparing.write_parquet(tmp_path / "a.parquet", TEXTS)
    preparing.write_arrow(tmp_path / "a.arrow", TEXTS)
    here = manifest_of(tmp_path / "here", str(tmp_path / "a.jsonl"))

    for name in ("a.jsonl", "a.arrow"):
        assert manifest_of(tmp_path / name[2:], f"{server}/{name}?token=secret") == here
    if has_ranges:
        assert manifest_of(tmp_path / "p", f"{server}/a.parquet?token=secret") == here
        with pytest.raises(ServiceUnreachable, match="403") as refused:
            manifest_of(tmp_path / "forbidden", f"{server}/a.jsonl?token=other-secret")
    else:
        assert manifest_of(tmp_path / "glob", f"{server}/*.jsonl") == here
        with pytest.raises(ServiceUnreachable, match="support range requests") as refused:
            manifest_of(tmp_path / "p", f"{server}/a.parquet?token=secret")
    assert "secret" not in str(refused.value)
    assert all("secret" not in path.read_text() for path in tmp_path.glob("*/prepared.json"))


@pytest.mark.nightly
def test_prepare__s3__is_read_as_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import boto3
    from moto.server import ThreadedMotoServer

    preparing.write_parquet(tmp_path / "a.parquet", TEXTS[:1000])
    preparing.write_parquet(tmp_path / "b.parquet", TEXTS[1000:])
    preparing.write_saved(tmp_path / "saved", TEXTS)
    here = manifest_of(tmp_path / "here", str(tmp_path / "*.parquet"))
    made = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    made.start()
    try:
        host, port = made.get_host_and_port()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ann")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        store = boto3.client("s3")
        store.create_bucket(Bucket="corpus")
        for path in [*tmp_path.glob("*.parquet"), *(tmp_path / "saved").iterdir()]:
            store.upload_file(str(path), "corpus", str(path.relative_to(tmp_path)))

        assert manifest_of(tmp_path / "files", "s3://corpus/*.parquet") == here
        assert manifest_of(tmp_path / "set", "s3://corpus/saved") == here
        with pytest.raises(NotFound, match=r"s3://corpus/none\.txt is not there"):
            manifest_of(tmp_path / "none", "s3://corpus/none.txt")
        with pytest.raises(Refused, match=r"a\.parquet has no field 'body'.*: .* id, text"):
            prepare_data(recipe_of(["s3://corpus/*"], field="body"), tmp_path / "body")
    finally:
        made.stop()
