"""What do the documents tell a person to type? Fenced blocks, terminals and our commands in them.

A line such as `Terminal 1, ...` or `Terminals 2 to 7, ...` before a block says where it is typed:
one terminal has the whole block, several have a line each. Both kinds of test read documents here:
the one that types what the README prints, and the one that looks whether all verbs exist.
"""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

SHELL = "sh"
SESSION = "console"
PROMPT = "$ "

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`(tallystick [^`]+)`(?!`)")
_TERMINALS = re.compile(r"^Terminals? (\d+)(?: to (\d+))?,")
_COMMAND = re.compile(r"(?:^|[|(;&]|\$\(|\s)(tallystick (?:[^|();&#]|\[[^\]]*\])*)")


@dataclass(frozen=True)
class Block:
    """A fenced block, and the paragraph that leads to it."""

    before: str
    language: str
    text: str

    @property
    def lines(self) -> list[str]:
        """Its lines; one that ends in a backslash goes on in the next."""
        return self.text.replace("\\\n", " ").splitlines()


def section(text: str, title: str) -> str:
    """What stands under a heading of the second level."""
    rest = text.split(f"\n## {title}\n", 1)[1]
    return rest.split("\n## ", 1)[0]


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a document, in order."""
    for match in _FENCE.finditer(text):
        paragraphs = text[: match.start()].rstrip().rsplit("\n\n", 1)
        yield Block(paragraphs[-1].strip(), match[1], match[2])


def terminals(text: str) -> Mapping[int, str]:
    """What is typed into each terminal; blocks for the same one follow each other."""
    typed: dict[int, list[str]] = defaultdict(list)
    for block in blocks(text):
        where = _TERMINALS.match(block.before)
        assert where is not None and block.language == SHELL, block
        first, last = int(where[1]), int(where[2] or where[1])
        if first == last:
            typed[first].append(block.text)
            continue
        assert len(block.lines) == last - first + 1, block
        for number, line in zip(range(first, last + 1), block.lines, strict=True):
            typed[number].append(line + "\n")
    return {number: "".join(texts) for number, texts in typed.items()}


def commands(text: str) -> Iterator[str]:
    """Our commands in a document: typed ones of its blocks, and spans in backticks."""
    for block in blocks(text):
        for line in block.lines:
            is_typed = block.language == SHELL or line.startswith((PROMPT, "tallystick "))
            if is_typed and block.language in ("", SHELL, SESSION):
                said = line.split(" #", 1)[0]
                yield from (match[1].strip() for match in _COMMAND.finditer(said))
    for match in _SPAN.finditer(_FENCE.sub("", text)):
        yield " ".join(match[1].split())


def words_of(command: str) -> list[str]:
    """The words of a command; what is optional in a synopsis counts as written."""
    return shlex.split(command.replace("[", "").replace("]", ""), comments=True)
