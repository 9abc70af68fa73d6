"""What does it take to make a large Parquet set shards, and how much of it does a peer fetch?

`python -m bench.data_prepare [--gigabytes N]` prints a line of JSON. It writes N GB of Parquet
(text, uncompressed, files of 32 MB) and gives them to an S3 server (moto), a process of its own.
`tallystick data prepare` is a process too: its peak resident memory, Python and libraries included,
and MB/s of Parquet are measured. Then a peer reads rows of 4 KiB (as 2,048 tokens of 2 bytes have),
one unit after the other, a thousandth of all rows and more, from an empty cache; what it fetches is
counted with manifest and indexes. A byte is a token here: tokenizers have their own speed. Needs
the extra `nightly`. MB are 1e6 bytes.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import boto3
import pyarrow
from pyarrow import parquet

from bench.measuring import ROOT, about, limit, parsed, parser_of
from contracts.terms.ids import Digest
from contracts.terms.items import ItemNumber
from training.config import DataConfig
from training.data.loading import UnitRows
from training.data.order import index_rows
from training.data.prepare import FolderBlobs, PreparedData, load_prepared

MB = 1e6
FILE_BYTES = 32 * 10**6
ROW_BYTES = 4096
SHARES = (1000, 200, 50)  # a peer computes one row of so many
BUCKET = "corpus"
PORT = 5551


def texts(draw: random.Random, words: str) -> Iterator[str]:
    """Documents of 100 to 20,000 characters, about 32 MB of them, all different."""
    left = FILE_BYTES
    while left > 0:
        start, length = draw.randrange(len(words) // 2), int(100 * 200 ** draw.random())
        text = f"{draw.getrandbits(64):x} {words[start : start + length]}"
        left -= len(text)
        yield text


@contextmanager
def served(folder: Path, num_files: int) -> Iterator[dict[str, str]]:
    """An S3 server with the set; yields the environment of those who read from it."""
    url = f"http://127.0.0.1:{PORT}"
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_ENDPOINT_URL": url}
    os.environ |= keys | {"AWS_DEFAULT_REGION": "us-east-1"}
    command = [sys.executable, "-m", "moto.server", "-p", str(PORT)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _await(url)
            store = boto3.client("s3")
            store.create_bucket(Bucket=BUCKET)
            draw = random.Random(1)
            words = " ".join(f"{draw.getrandbits(24):x}" for _ in range(20_000))
            for number in range(num_files):
                path = folder / "made.parquet"
                made = pyarrow.table({"text": list(texts(draw, words))})
                parquet.write_table(made, path, compression="none")
                store.upload_file(str(path), BUCKET, f"{number:05}.parquet")
            yield dict(os.environ)
        finally:
            server.kill()


def _await(url: str) -> None:
    while True:
        with suppress(OSError), urllib.request.urlopen(url):
            return
        time.sleep(0.1)


def prepared(folder: Path, environment: dict[str, str]) -> tuple[float, int]:
    """Seconds and peak resident bytes of preparing the set in `folder`."""
    command = [sys.executable, "-m", "tallystick", "data", "prepare", f"s3://{BUCKET}/*"]
    began = time.monotonic()
    with subprocess.Popen(
        [*command, "--to", str(folder)], stdout=subprocess.DEVNULL, env=environment
    ) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return time.monotonic() - began, used.ru_maxrss * 1024


class Counted(FolderBlobs):
    """Counts the bytes that are fetched."""

    def __init__(self, found: PreparedData) -> None:
        super().__init__(found)
        self.num_bytes = 0

    def fetch(self, digest: Digest) -> bytes:
        """See `BlobSource.fetch`."""
        data = super().fetch(digest)
        self.num_bytes += len(data)
        return data

    def fetch_range(self, digest: Digest, start: int, end: int) -> bytes:
        """See `BlobSource.fetch_range`."""
        data = super().fetch_range(digest, start, end)
        self.num_bytes += len(data)
        return data


def fetched(found: PreparedData, one_in: int) -> dict[str, float]:
    """What a peer fetches that computes one row in `one_in`."""
    blobs = Counted(found)
    rows = UnitRows(found.manifest, DataConfig(8, 64), ROW_BYTES, blobs)
    num_rows = index_rows(found.manifest.train, ROW_BYTES).num_rows // one_in
    for item in range(num_rows // 8):
        rows.load(ItemNumber(item))
    total = blobs.num_bytes + len(found.manifest.encoded())
    return {
        "percent of rows": round(100 / one_in, 2),
        "percent fetched": round(100 * total / found.num_bytes, 2),
    }


def measured(gigabytes: float) -> dict[str, object]:
    """All figures at one size."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        num_files = max(4, round(gigabytes * 1e9 / FILE_BYTES))
        with served(folder, num_files) as environment:
            seconds, peak = prepared(folder / "prepared", environment)
            again, _ = prepared(folder / "prepared", environment)
        found = load_prepared(folder / "prepared")
        return {
            "MB of Parquet": round(num_files * FILE_BYTES / MB),
            "documents": found.counted.documents,
            "MB of shards": round(found.num_bytes / MB),
            "manifest, bytes": len(found.manifest.encoded()),
            "seconds": round(seconds, 1),
            "MB/s": round(num_files * FILE_BYTES / MB / seconds, 1),
            "peak MiB": round(peak / 2**20),
            "called again, seconds": round(again, 1),
            "peer": [fetched(found, one_in) for one_in in SHARES],
        }


def options() -> argparse.Namespace:
    """As typed."""
    parser = parser_of(__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of Parquet")
    return parsed(parser, minutes=120.0, gigabytes=0.1)


def main() -> None:
    """Measure and print."""
    typed = options()
    with limit(typed.minutes, "the data is prepared"):
        print(json.dumps(measured(typed.gigabytes) | about()))


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
