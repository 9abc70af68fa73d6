"""From files and URLs to shards in a folder: what the poster does once, before a job is posted.

Documents are read one after another, in the order of their files, and made tokens. Each goes to the
end of one of two runs of tokens, training or validation, with the tokenizer's end-of-text token
behind it (what a newline is, if it has none; without a tokenizer a newline). Runs are cut into
shards of 64 MiB wherever that falls, so a row may hold the end of one document and the start of the
next, but no document lacks its end. Whether a document validates is decided by its hash, about one
in 32; of a text file each piece of a 64th of all files, 512 bytes to 64 KiB, counts as one, and a
separator stands where a neighbour went to the other run. Where documents are few and validation
would have less than half of its share, all is packed again with twice the share.

Chats go to runs of whole rows, which shards do not cut, without separators: several stand whole in
a row where they fit, and the rest is filled up with tokens that are no targets. A chat that is
longer than a row is cut at its end, and left out if no target is left; both are counted. Each row
has a target beside its first token. Attention does not stop between two chats of a row.

The folder holds `prepared.json`, the shards `train-00000` and so on, their indexes, the manifest,
the tokenizer and the counts of targets. `prepared.json` says how long both runs are and where
reading goes on; it is replaced when what it speaks of is on disk. What is longer was written after
it, and is cut off: so after a kill at any moment the same call ends with the same bytes.
Invariants: equal documents in equal order and an equal tokenizer give an equal manifest; equal
documents are never in both runs.
"""

import contextlib
import fcntl
import os
import secrets
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from contracts.disk import lock_file, sync
from contracts.terms.digest import blob_digest, digest
from contracts.terms.errors import Conflict, Malformed, NotFound, Refused, TooLarge
from contracts.terms.ids import ZERO_DIGEST, Digest
from contracts.terms.targets import MAX_TARGET_ROWS, TargetCounts, target_counts
from training.data.chats import ChatEncoder, ChatForm, chats
from training.data.documents import Document, Place, documents, piece_bytes
from training.data.manifest import (
    MAX_SHARD_BYTES,
    MAX_SHARDS,
    Manifest,
    Shard,
    ShardIndex,
    TokenKind,
    count_targets,
    index_of,
    num_targets,
)
from training.data.sources import SourceFile, find_files
from training.data.tokens import ByteEncoder, Encoder, TokenFile

STATE, MANIFEST, TOKENIZER = "prepared.json", "manifest", "tokenizer.json"
TARGETS = "targets"
USUAL_FIELD = "text"
ONE_IN = 32
"""Documents of which one validates, where there are many."""
BATCH_CHARACTERS = 2**20
SAVE_SECONDS, SAY_SECONDS = 5.0, 2.0
RUNS: tuple["Run", "Run"] = ("train", "validation")
_RECIPE = b"prepare 1"

Run = Literal["train", "validation"]
Say = Callable[[str], None]


class Counted(BaseModel):
    """What was read, and what came of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    documents: int = 0
    validation_documents: int = 0  # of them
    characters: int = 0
    train_bytes: int = 0
    validation_bytes: int = 0
    cut: int = 0  # chats that were longer than a row
    left_out: int = 0  # of these, without a target in what was left


class State(BaseModel):
    """What `prepared.json` says."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["prepared.v1"] = "prepared.v1"
    recipe: str
    one_in: int = ONE_IN
    file: int = 0
    at: int = 0
    lines: int = 0
    unended: Run | None = None  # run whose last document has more to come
    counted: Counted = Counted()
    tokens: TokenKind
    tokenizer: str  # digest of its file, or 64 zeros
    manifest: str = ""  # digest; none: not at its end
    targets: str = ""  # digest of their counts; none: of texts


@dataclass(frozen=True)
class PreparedData:
    """A folder of shards at its end."""

    folder: Path
    manifest: Manifest
    tokenizer: Digest  # zero: a byte is a token
    counted: Counted
    targets: TargetCounts | None = None  # of chats

    def files(self) -> Iterator[tuple[Digest, Path]]:
        """Blobs that the job's peers need, and where they are; each after those that it names."""
        for run in RUNS:
            for number, shard in enumerate(getattr(self.manifest, run)):
                path = _shard_path(self.folder, run, number)
                yield _index_in(path).blob, path
                yield shard.digest, _index_path(path)
        yield self.manifest.digest(), self.folder / MANIFEST
        if self.targets is not None:
            yield self.targets.digest(), self.folder / TARGETS

    @property
    def num_bytes(self) -> int:
        """Of all of these blobs."""
        return sum(path.stat().st_size for _, path in self.files())

    @property
    def in_words(self) -> str:
        """What is in it, for a person."""
        counted, width = self.counted, self.manifest.token_bytes
        if self.targets is None:
            return (
                f"corpus: {counted.documents} documents, {counted.train_bytes // width} tokens to "
                f"train, {counted.validation_bytes // width} to validate"
            )
        rows = (self.targets.of_train, self.targets.of_validation)
        return (
            f"chats: {counted.documents} in {sum(map(len, rows))} rows with {sum(map(sum, rows))} "
            f"target tokens, {len(self.targets.of_validation)} of these rows to validate; "
            f"{counted.cut} were longer than a row and cut, {counted.left_out} of them left out, "
            "as nothing of the assistant was left"
        )


class FolderBlobs:
    """Satisfies `BlobSource` with the blobs of a prepared folder."""

    def __init__(self, prepared: PreparedData) -> None:
        self._paths = dict(prepared.files())

    def fetch(self, digest: Digest) -> bytes:
        """See `BlobSource.fetch`."""
        return self._path(digest).read_bytes()

    def fetch_range(self, digest: Digest, start: int, end: int) -> bytes:
        """See `BlobSource.fetch_range`."""
        with self._path(digest).open("rb") as file:
            file.seek(start)
            return file.read(end - start)

    def _path(self, digest: Digest) -> Path:
        if digest not in self._paths:
            raise NotFound(f"no blob {digest.hex()}")
        return self._paths[digest]


class Recipe(NamedTuple):
    """What is to be prepared, and how."""

    files: list[SourceFile]
    field: str
    tokenizer: TokenFile | None
    form: ChatForm | None = None  # of chats

    @property
    def digest(self) -> Digest:
        """Changes when the bytes that come of it may."""
        named = b"" if self.tokenizer is None else blob_digest(self.tokenizer.data)
        form = b"" if self.form is None else self.form.encoded()
        files = (f"{file.name} {file.stamp}".encode() for file in self.files)
        parts = (_RECIPE, self.field.encode(), named, form, *files)
        return digest("data recipe", b"\n".join(parts))

    @property
    def shard_bytes(self) -> int:
        """Of every shard but the last; of chats it holds whole rows."""
        row_bytes = 1 if self.form is None else self.form.row_bytes
        return MAX_SHARD_BYTES // row_bytes * row_bytes

    def encoder(self) -> Encoder:
        """What makes its tokens; raises Refused: a library is not installed."""
        if self.tokenizer is None:
            return ByteEncoder()
        return self.tokenizer.encoder() if self.form is None else ChatEncoder(self.tokenizer)

    def read(self, number: int, place: Place) -> Iterator[Document]:
        """The documents of a file from `place` on; raises as `documents` or `chats`."""
        file = self.files[number]
        if self.form is not None:
            return chats(file, self.form.template, place)
        return documents(file, self.field, place, piece=piece_bytes(self.files))


def recipe_of(
    names: Sequence[str],
    *,
    field: str = USUAL_FIELD,
    tokenizer: TokenFile | None = None,
    form: ChatForm | None = None,
) -> Recipe:
    """What to do with the files of `names`, of chats with a `form`; raises as `find_files`."""
    return Recipe(find_files(names), field, tokenizer, form)


# ----------------------------------------------------------------------------------------- folders


def load_prepared(folder: Path) -> PreparedData:
    """A folder that was prepared to its end.

    Raises:
        NotFound: no such folder, or not to its end. Malformed: it is damaged.
    """
    state = _read_state(folder)
    if state is None or not state.manifest:
        raise NotFound(
            f"data: {folder} was not prepared to its end: call `tallystick data prepare` again"
        )
    try:
        manifest = Manifest.decoded((folder / MANIFEST).read_bytes())
    except OSError as error:
        raise _altered(folder / MANIFEST) from error
    if manifest.digest().hex() != state.manifest:
        raise _altered(folder / MANIFEST)
    tokenizer = Digest(bytes.fromhex(state.tokenizer))
    return PreparedData(folder, manifest, tokenizer, state.counted, _targets_in(folder, state))


def _targets_in(folder: Path, state: State) -> TargetCounts | None:
    if not state.targets:
        return None
    try:
        targets = TargetCounts.decoded((folder / TARGETS).read_bytes())
    except (OSError, Refused) as error:
        raise _altered(folder / TARGETS) from error
    if targets.digest().hex() != state.targets:
        raise _altered(folder / TARGETS)
    return targets


def is_prepared(folder: Path) -> bool:
    """Whether this is a folder of `tallystick data prepare`, at its end or not."""
    return (folder / STATE).is_file()


def _read_state(folder: Path) -> State | None:
    try:
        return State.model_validate_json((folder / STATE).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise Malformed(f"data: {folder / STATE} is damaged: delete {folder}") from error


def _shard_path(folder: Path, run: Run, number: int) -> Path:
    return folder / f"{run}-{number:05}"


def _index_path(shard: Path) -> Path:
    return shard.with_name(f"{shard.name}.index")


def _index_in(shard: Path) -> ShardIndex:
    try:
        return ShardIndex.decoded(_index_path(shard).read_bytes())
    except OSError as error:
        raise _altered(_index_path(shard)) from error


def _replace(path: Path, data: bytes) -> None:
    """Write a file that is there whole or not at all, and survives a power cut."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        draft.write_bytes(data)
        sync(draft)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    sync(path.parent)


def _altered(path: Path) -> Malformed:
    return Malformed(f"data: {path} was altered since it was prepared: delete {path.parent}")


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as lock:
        try:
            lock_file(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, Path(lock.name))
        except BlockingIOError as error:
            raise Conflict(f"another process prepares {folder}: wait for it") from error
        yield


# ----------------------------------------------------------------------------------------- packing


def prepare_data(recipe: Recipe, folder: Path, *, say: Say = lambda line: None) -> PreparedData:
    """Make the shards of `recipe` in `folder`, or go on where a call before was ended.

    Args:
        recipe: What to read. A folder is of one recipe.
        folder: Made if it is not there.
        say: Told now and then how far it is.

    Raises:
        Conflict: another process does it, or the folder is of another recipe, or its files changed.
        Refused: as `documents`; too few documents, or more than a manifest names.
        TooLarge: too many rows of chats.
        NotFound, ServiceUnreachable: a file cannot be read; the same call goes on there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    encoder = recipe.encoder()
    named = ZERO_DIGEST if recipe.tokenizer is None else blob_digest(recipe.tokenizer.data)
    with _alone(folder):
        name = recipe.digest.hex()
        state = _read_state(folder)
        if state is None:
            state = State(recipe=name, tokens=encoder.kind, tokenizer=named.hex())
        if state.recipe != name:
            raise Conflict(
                f"data: {folder} was begun with other files, field or tokenizer, or a file has "
                "changed since: name a new folder, or delete this one"
            )
        while not state.manifest:
            state = _Packing(recipe, folder, encoder, state, say).run()
            state = _again(state) or _finished(folder, state, recipe)
            _save(folder, state)
    return load_prepared(folder)


def _again(state: State) -> State | None:
    """The state to begin again with, if too little was set aside."""
    counted = state.counted
    total = counted.train_bytes + counted.validation_bytes
    if counted.validation_bytes * 2 * state.one_in >= total or state.one_in == 2:
        return None
    return State(
        recipe=state.recipe,
        one_in=state.one_in // 2,
        tokens=state.tokens,
        tokenizer=state.tokenizer,
    )


def _finished(folder: Path, state: State, recipe: Recipe) -> State:
    """Write the indexes and the manifest of what was packed."""
    counted = state.counted
    if not counted.train_bytes or not counted.validation_bytes:
        raise Refused(
            f"data: {counted.documents} documents of {counted.characters} characters are too few "
            "to set some aside for validation: use more text"
        )
    shards: dict[Run, tuple[Shard, ...]] = {}
    for run in RUNS:
        num_bytes = counted.train_bytes if run == "train" else counted.validation_bytes
        found = []
        for number in range(-(-num_bytes // recipe.shard_bytes)):
            path = _shard_path(folder, run, number)
            with path.open("rb") as file:
                index = index_of(file)
            left = num_bytes - number * recipe.shard_bytes
            if index.num_bytes != min(recipe.shard_bytes, left):
                raise _altered(path)
            _replace(_index_path(path), index.encoded())
            found.append(index.shard())
        shards[run] = tuple(found)
    try:
        manifest = Manifest(
            tokens=state.tokens, train=shards["train"], validation=shards["validation"]
        )
    except ValidationError as error:
        raise Refused(
            f"data: no manifest holds this: {error.errors()[0]['msg']}; leave repeated texts out, "
            f"or use less than {MAX_SHARDS} shards"
        ) from error
    if recipe.tokenizer is not None:
        _replace(folder / TOKENIZER, recipe.tokenizer.data)
    _replace(folder / MANIFEST, manifest.encoded())
    update = {"manifest": manifest.digest().hex()}
    if recipe.form is not None:
        targets = _count(folder, manifest, recipe.form.row_bytes)
        _replace(folder / TARGETS, targets.encoded())
        update["targets"] = targets.digest().hex()
    return state.model_copy(update=update)


def _count(folder: Path, manifest: Manifest, row_bytes: int) -> TargetCounts:
    """The targets of each row, in the order of the manifest."""
    counts = {run: array("H") for run in RUNS}
    for run, counted in counts.items():
        for number in range(len(getattr(manifest, run))):
            with _shard_path(folder, run, number).open("rb") as file:
                counted.extend(count_targets(file, row_bytes))
    return target_counts(counts["train"], counts["validation"])


def _save(folder: Path, state: State) -> None:
    _replace(folder / STATE, state.model_dump_json().encode())


class _Packing:
    """One pass over the files, from where `state` is to their end."""

    def __init__(
        self, recipe: Recipe, folder: Path, encoder: Encoder, state: State, say: Say
    ) -> None:
        self._recipe, self._folder, self._encoder, self._say = recipe, folder, encoder, say
        self._state, self._saved_at, self._said_at = state, time.monotonic(), time.monotonic()
        self._runs: dict[Run, _RunFile] = {}

    def run(self) -> State:
        """Read and write everything that is left; returns the state at the end, saved."""
        counted = self._state.counted
        lengths: tuple[tuple[Run, int], ...] = (
            ("train", counted.train_bytes),
            ("validation", counted.validation_bytes),
        )
        with contextlib.ExitStack() as stack:
            for run, num_bytes in lengths:
                shard_bytes = self._recipe.shard_bytes
                file = contextlib.closing(_RunFile(self._folder, run, num_bytes, shard_bytes))
                self._runs[run] = stack.enter_context(file)
            try:
                self._read()
            finally:  # also of an error: the same call goes on here
                self._save()
        return self._state

    def _read(self) -> None:
        while self._state.file < len(self._recipe.files):
            place = Place(self._state.at, self._state.lines)
            batch: list[Document] = []
            characters = 0
            for document in self._recipe.read(self._state.file, place):
                batch.append(document)
                characters += len(document.text)
                if characters >= BATCH_CHARACTERS:
                    self._pack(batch)
                    batch, characters = [], 0
            self._pack(batch)
            after = {"file": self._state.file + 1, "at": 0, "lines": 0}
            self._state = self._state.model_copy(update=after)
        if self._recipe.form is not None:
            for run in self._runs.values():
                run.fill_row(self._recipe.form.row_bytes)
            self._note({})

    def _pack(self, batch: Sequence[Document]) -> None:
        form, encoded = self._recipe.form, self._encoder.encode(batch)
        made = list(zip(batch, encoded, strict=True))
        added = self._texts(made) if form is None else self._chats(made, form.row_bytes)
        added["characters"] = sum(len(document.text) for document in batch)
        self._note(added)
        if batch:
            after = batch[-1].after
            at = {"at": after.at, "lines": after.lines}
            self._state = self._state.model_copy(update=at)
        now = time.monotonic()
        if now > self._saved_at + SAVE_SECONDS:
            self._save()
            self._saved_at = now
        if now > self._said_at + SAY_SECONDS:
            self._say(self._progress())
            self._said_at = now

    def _note(self, added: Mapping[str, int]) -> None:
        """Count what was added, and how long the runs are now."""
        counted = self._state.counted
        lengths = {f"{run}_bytes": file.num_bytes for run, file in self._runs.items()}
        sums = {name: getattr(counted, name) + number for name, number in added.items()}
        update = {"counted": counted.model_copy(update=sums | lengths)}
        self._state = self._state.model_copy(update=update)

    def _chats(self, made: Sequence[tuple[Document, bytes]], row_bytes: int) -> dict[str, int]:
        """Add chats to rows; returns what is counted of them."""
        validating, cut, left_out = 0, 0, 0
        for chat, tokens in made:
            run, kept = self._run_of(chat.text), tokens[:row_bytes]
            cut += len(tokens) > row_bytes
            if not num_targets(kept):
                left_out += 1
                continue
            validating += run == "validation"
            if self._runs[run].num_bytes % row_bytes + len(kept) > row_bytes:
                self._runs[run].fill_row(row_bytes)
            self._runs[run].append(kept)
        rows = sum(-(-run.num_bytes // row_bytes) for run in self._runs.values())
        if rows > MAX_TARGET_ROWS:
            raise TooLarge(
                f"data: more than {MAX_TARGET_ROWS} rows of chats: use fewer chats or a longer "
                "sequence_length",
                size=rows,
                limit=MAX_TARGET_ROWS,
            )
        return {
            "documents": len(made),
            "validation_documents": validating,
            "cut": cut,
            "left_out": left_out,
        }

    def _texts(self, made: Sequence[tuple[Document, bytes]]) -> dict[str, int]:
        """Add texts to runs; returns what is counted of them."""
        validating, ended, unended = 0, 0, self._state.unended
        for document, tokens in made:
            if document.text:
                run = self._run_of(document.text)
                if unended not in (None, run):
                    self._runs[unended].append(self._encoder.separator)
                self._runs[run].append(tokens)
                unended = run
            if document.is_end and unended is not None:
                self._runs[unended].append(self._encoder.separator)
                ended, validating = ended + 1, validating + (unended == "validation")
                unended = None
        self._state = self._state.model_copy(update={"unended": unended})
        return {"documents": ended, "validation_documents": validating}

    def _run_of(self, text: str) -> Run:
        drawn = int.from_bytes(digest("held-out document", text.encode())[:8], "big")
        return "validation" if drawn < 2**64 // self._state.one_in else "train"

    def _save(self) -> None:
        for run in self._runs.values():
            run.sync()
        _save(self._folder, self._state)

    def _progress(self) -> str:
        state, counted = self._state, self._state.counted
        return (
            f"data: file {state.file + 1} of {len(self._recipe.files)}, {counted.documents} "
            f"documents, {counted.characters / 1e6:.0f} million characters, "
            f"{(counted.train_bytes + counted.validation_bytes) / 1e6:.0f} MB of tokens"
        )


class _RunFile:
    """A run of tokens in files of the length of a shard, which grows at its end."""

    def __init__(self, folder: Path, run: Run, num_bytes: int, shard_bytes: int) -> None:
        """Cut off what is there beyond `num_bytes`."""
        self._folder, self._run, self.num_bytes = folder, run, num_bytes
        self._shard_bytes = shard_bytes
        number, length = divmod(num_bytes, shard_bytes)
        for path in folder.glob(f"{run}-?????"):
            beyond = int(path.name.removeprefix(f"{run}-")) - number
            if beyond > 0 or (beyond == 0 and not length):
                path.unlink()
            elif beyond == 0 and path.stat().st_size > length:
                os.truncate(path, length)
        path = _shard_path(folder, run, number)
        if length and not (path.exists() and path.stat().st_size == length):
            raise _altered(path)
        self._file = path.open("ab")

    def append(self, data: bytes) -> None:
        """Add tokens; raises Refused where a manifest has no more room."""
        while data:
            number, length = divmod(self.num_bytes, self._shard_bytes)
            if number >= MAX_SHARDS:
                raise Refused(f"data: more than {MAX_SHARDS} shards: use fewer documents")
            if length == 0:
                self.sync()
                self._file.close()
                self._file = _shard_path(self._folder, self._run, number).open("ab")
            taken = data[: self._shard_bytes - length]
            self._file.write(taken)
            self.num_bytes += len(taken)
            data = data[len(taken) :]

    def fill_row(self, row_bytes: int) -> None:
        """Add tokens that are no targets up to the end of a row; a full one stays."""
        self.append(bytes(-self.num_bytes % row_bytes))

    def close(self) -> None:
        """End writing."""
        self._file.close()

    def sync(self) -> None:
        """Have it on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
