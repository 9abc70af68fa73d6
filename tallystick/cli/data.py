"""`tallystick data`: texts of any size as the shards that a job trains on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from contracts.settings import expanded
from contracts.terms.ids import DigestField
from market.bodies.base import Body
from tallystick.cli.output import notice, shows
from training.data.prepare import USUAL_FIELD, PreparedData, prepare_data, recipe_of
from training.data.tokens import read_token_file

app = typer.Typer(no_args_is_help=True, help="Make texts the shards that a job trains on.")


class PreparedView(Body):
    """What is in a prepared folder."""

    folder: str
    manifest: DigestField
    documents: int
    validation_documents: int
    characters: int
    tokens: str
    train_tokens: int
    validation_tokens: int
    shards: int
    upload_bytes: int


def view_of(prepared: PreparedData) -> PreparedView:
    """What is said of a folder."""
    counted, manifest = prepared.counted, prepared.manifest
    return PreparedView(
        folder=str(prepared.folder),
        manifest=manifest.digest(),
        documents=counted.documents,
        validation_documents=counted.validation_documents,
        characters=counted.characters,
        tokens=manifest.tokens,
        train_tokens=counted.train_bytes // manifest.token_bytes,
        validation_tokens=counted.validation_bytes // manifest.token_bytes,
        shards=len(manifest.shards()),
        upload_bytes=prepared.num_bytes,
    )


def _lines(view: PreparedView) -> Iterator[str]:
    yield (
        f"{view.documents} documents of {view.characters} characters: {view.train_tokens} tokens "
        f"to train, {view.validation_tokens} to validate ({view.tokens}), in {view.shards} shards"
    )
    yield f"{view.folder}: name it in a job file as `data: {view.folder}`"
    yield view.manifest.hex()


@app.command("prepare")
@shows(PreparedView, lines=_lines)
def prepare_command(
    names: Annotated[
        list[str], typer.Argument(help="Patterns of files, or URLs.", metavar="FROM...")
    ],
    to: Annotated[Path, typer.Option("--to", help="Folder to write.", metavar="FOLDER")],
    field: Annotated[
        str, typer.Option("--field", help="Of records, the field with the text.")
    ] = USUAL_FIELD,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", help="A tokenizer.json; none: bytes.")
    ] = None,
) -> PreparedView:
    """Make texts the shards that a job trains on, in a folder that a job file names as `data`.

    Text, JSON lines, Parquet and folders of Dataset.save_to_disk, here or at URLs (file, s3, https,
    hf). What an interrupted call has done is not done again. Ends with the manifest's digest.

    Example: tallystick data prepare 'texts/*.jsonl' --to prepared --tokenizer tokenizer.json
    """
    found = None if tokenizer is None else read_token_file(expanded(tokenizer))
    recipe = recipe_of(names, field=field, tokenizer=found)
    return view_of(prepare_data(recipe, to, say=notice))
