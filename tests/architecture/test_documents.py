"""Do the documents speak of what is there: links, commands with their options?"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tallystick.cli.main import NOUNS, noun_of
from tests.architecture.checkout import ROOT
from tests.support.documents import commands, words_of

DOCUMENTS = ("README.md", "tallystick/README.md")
"""What somebody reads who installs it; other documents drift all the same."""

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
PLAIN = {"--help", "--install-completion", "--show-completion"}
"""Options that stand before a noun."""
GENERAL = {"NOUN", "VERB", "version", ">"}
"""Words of synopses that name no noun or verb."""


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
