"""`tallystick schema`: the JSON Schema of what a verb answers under `-o json`."""

import json
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from contracts.terms.errors import NotFound
from market.bodies.base import Body
from tallystick.cli.main import all_verbs
from tallystick.cli.output import declared_by, shows


class VerbShown(Body):
    """What a verb answers with."""

    noun: str
    verb: str  # empty where the noun is its own verb
    body: str  # name of the document, which is its schema's title
    rows: str | None  # the field that -o csv prints
    document: dict[str, Any]
    """JSON Schema, draft 2020-12."""


class VerbsShown(Body):
    """All verbs, or those that were named."""

    verbs: tuple[VerbShown, ...]


def _lines(shown: VerbsShown) -> Iterator[str]:
    if len(shown.verbs) == 1:
        yield json.dumps(shown.verbs[0].document, indent=2)
        return
    for each in shown.verbs:
        rows = f", rows: {each.rows}" if each.rows else ""
        yield f"{each.noun} {each.verb}".strip() + f": {each.body}{rows}"


@shows(VerbsShown, lines=_lines, rows="verbs")
def app(
    noun: Annotated[str | None, typer.Argument(help="As `job`.")] = None,
    verb: Annotated[str | None, typer.Argument(help="As `show`.")] = None,
) -> VerbsShown:
    """Print the JSON Schema of a verb's answer; without a verb, list what verbs answer with.

    Example: tallystick schema job show
    """
    wanted = (noun, verb)
    found = tuple(
        each
        for each in verbs_shown()
        if all(
            name in (None, own) for name, own in zip(wanted, (each.noun, each.verb), strict=True)
        )
    )
    if not found:
        raise NotFound(f"no verb {' '.join(filter(None, wanted))}: see `tallystick schema`")
    return VerbsShown(verbs=found)


def verbs_shown() -> Iterator[VerbShown]:
    """What each verb of each noun answers with, in the order of the help."""
    for noun, word, verb in all_verbs():
        declared = declared_by(verb.callback)
        if declared is not None:
            yield VerbShown(
                noun=noun,
                verb=word,
                body=declared.body.__name__,
                rows=declared.rows,
                document=declared.schema(),
            )
