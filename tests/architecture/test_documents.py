"""Do the documents speak of what is there: paths, links, commands with their options?"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tallystick.cli.main import NOUNS, noun_of
from tests.architecture.checkout import PACKAGES, ROOT
from tests.support.documents import commands, documents, terminals, words_of

DOCUMENTS = [str(path.relative_to(ROOT)) for path in documents()]

# A path in backticks that starts in one of our folders: `training/swarm/step.py`, `market/`.
OUR_PATH = re.compile(rf"`((?:{'|'.join(PACKAGES)}|docs|examples|tests|tools)/[\w./-]*)`")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
PLAIN = {"--help", "--install-completion", "--show-completion"}
"""Options that stand before a noun."""
GENERAL = {"NOUN", "VERB", "version", ">"}
"""Words of synopses that name no noun or verb."""


@pytest.mark.parametrize("document", DOCUMENTS)
def test_document__paths_it_names__exist(document: str) -> None:
    named = OUR_PATH.findall((ROOT / document).read_text())

    beside = (ROOT / document).parent
    assert [
        path for path in named if not ((ROOT / path).exists() or (beside / path).exists())
    ] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_document__relative_links__lead_somewhere(document: str) -> None:
    path = ROOT / document

    assert [link for link in LINK.findall(path.read_text()) if not leads(path, link)] == []


def leads(document: Path, link: str) -> bool:
    """Whether a link is to a file or heading that there is; others' sites are not asked."""
    parts = urlsplit(link)
    if parts.scheme:
        return parts.scheme in ("http", "https")
    target = (document.parent / parts.path).resolve() if parts.path else document
    if not target.exists():
        return False
    return not parts.fragment or parts.fragment in anchors(target.read_text())


def anchors(text: str) -> set[str]:
    """Names of a document's headings, as GitHub makes them."""
    bare = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in HEADING.findall(text))
    return {heading.strip().replace(" ", "-") for heading in bare}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_document__commands_it_shows__are_verbs_with_these_options(document: str) -> None:
    shown = dict.fromkeys(commands((ROOT / document).read_text()))

    assert [f"{each}: {wrong}" for each in shown for wrong in mistakes(words_of(each))] == []


def mistakes(words: list[str]) -> Iterator[str]:
    """What of a command is not there. `a|b` and `a, b` are several verbs."""
    nouns = {noun.word for noun in NOUNS}
    said = [word for word in words[1:] if word not in PLAIN]
    if not said or said[0] in GENERAL:
        return
    if said[0].split("|")[0] not in nouns:
        yield f"no noun {said[0]}"
        return
    for word in said[0].split("|"):
        yield from _mistakes_of(word, said[1:])


def _mistakes_of(word: str, rest: list[str]) -> Iterator[str]:
    noun = noun_of(word)
    verbs = getattr(noun, "commands", None)
    if verbs is None:
        yield from _unknown(noun, rest)
        return
    for verb in rest[0].split("|") if rest else []:
        if verb in verbs:
            yield from _unknown(verbs[verb], rest[1:])
        elif verb not in PLAIN:
            yield f"no verb {word} {verb}"


def _unknown(verb: Any, words: list[str]) -> Iterator[str]:
    options = {
        flag: option for option in verb.params for flag in option.opts + option.secondary_opts
    }
    positional = 0
    takes = sum(each.nargs for each in verb.params if each.param_type_name == "argument")
    is_value = False
    for word in words:
        flag, _, value = word.partition("=")
        if is_value:
            is_value = False
        elif flag.startswith("-") and flag != "-":
            if flag not in options and flag != "--help":
                yield f"no option {flag}"
            elif flag in options:
                is_value = not value and not options[flag].is_flag
        elif word not in ("...", ">", "\\", "<", "&") and not word.startswith(">"):
            positional += 1
    if not any(each.nargs == -1 for each in verb.params) and positional > takes:
        yield f"{positional} words, it takes {takes}"


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("tallystick up --detach", []),
        ("tallystick job submit FILE --wait --timeout 5", []),
        ("tallystick job show|watch JOB", []),
        ("tallystick provider start [--audit] --ask 1000", []),
        ("tallystick jb list", ["no noun jb"]),
        ("tallystick job post FILE", ["no verb job post"]),
        ("tallystick job submit FILE --now", ["no option --now"]),
        ("tallystick job show A B", ["2 words, it takes 1"]),
    ],
)
def test_mistakes__command__are_found(command: str, wrong: list[str]) -> None:
    assert list(mistakes(words_of(command))) == wrong


def test_commands__blocks_and_spans__are_found() -> None:
    block = "```sh\nX=$(tallystick job list -q | tail -1) # tallystick no\n```\n"
    text = f"A `tallystick up` and\n\n{block}"

    assert list(commands(text)) == ["tallystick job list -q", "tallystick up"]


def test_terminals__one_and_several__are_told_apart() -> None:
    text = "Terminal 1, a:\n\n```sh\none\ntwo\n```\n\nTerminals 2 to 3, b:\n\n```sh\nx\ny\n```\n"

    assert terminals(text) == {1: "one\ntwo\n", 2: "x\n", 3: "y\n"}


def test_makefile__targets__are_relative_and_phony() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([\w/.-]+):", makefile, flags=re.MULTILINE)
    phony = re.search(r"^\.PHONY:((?:.*\\\n)*.*)$", makefile, flags=re.MULTILINE)

    assert phony is not None
    assert set(targets) - {".PHONY"} == set(phony[1].replace("\\", " ").split())


def test_continuous_integration__runs__make_test() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text()
