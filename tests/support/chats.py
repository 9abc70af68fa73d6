"""Chats of a test: a tokenizer of bytes, a ChatML template, and chats of very different lengths."""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from contracts.terms.targets import TargetCounts
from tests.support.corpora import Corpus, loaded
from training.data.chat_template import read_template
from training.data.chats import chat_form
from training.data.prepare import PreparedData, Recipe, prepare_data, recipe_of
from training.data.tokens import read_token_file

VOCABULARY = 258
"""Bytes, and the two tokens of ChatML."""
END = 257

MARKED = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ message['content'] + '<|im_end|>\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML that says what the assistant generates, the end of its turn with it."""
PLAIN = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML as most models have it, without marks."""


def turns(*contents: str) -> list[dict[str, str]]:
    """Turns of the user and the assistant, one after the other."""
    roles = ("user", "assistant")
    return [
        {"role": roles[number % 2], "content": content} for number, content in enumerate(contents)
    ]


def write_tokenizer(folder: Path, template: str | None = MARKED) -> Path:
    """A tokenizer as `transformers` keeps it, with a chat template; its tokenizer.json."""
    alphabet = {letter: byte for byte, letter in enumerate(sorted(_alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([
        AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True),
    ])  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
    }
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder / "tokenizer.json"


def _alphabet() -> Sequence[str]:
    return pre_tokenizers.ByteLevel.alphabet()


def made_up(number: int = 200, seed: int = 1) -> Iterator[list[dict[str, str]]]:
    """Chats of one to three turns each, whose answers are of one to thirty letters."""
    drawn = random.Random(seed)
    for _ in range(number):
        said = ("".join(drawn.choices("abcd ", k=drawn.randint(1, 30))) for _ in range(6))
        yield turns(*list(said)[: 2 * drawn.randint(1, 3)])


def write_chats(file: Path, chats: Iterator[list[dict[str, str]]]) -> Path:
    """A file of JSON lines."""
    file.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    return file


def prepare_chats(
    file: Path, tokenizer: Path, folder: Path, sequence_length: int = 96
) -> PreparedData:
    """The rows of a file of chats, in a folder."""
    return prepare_data(chats_recipe(file, tokenizer, sequence_length), folder)


def chats_recipe(file: Path, tokenizer: Path, sequence_length: int = 96) -> Recipe:
    """What makes rows of a file of chats."""
    form = chat_form(read_template(tokenizer), sequence_length)
    return recipe_of([str(file)], tokenizer=read_token_file(tokenizer), form=form)


@dataclass(frozen=True)
class ChatCorpus:
    """Rows of chats in memory; the blobs hold the counts of targets too."""

    corpus: Corpus
    targets: TargetCounts


@cache
def corpus_of_chats(sequence_length: int = 96, number: int = 200) -> ChatCorpus:
    """Rows of made-up chats."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        file = write_chats(folder / "chats.jsonl", made_up(number))
        found = prepare_chats(file, write_tokenizer(folder), folder / "data", sequence_length)
        assert found.targets is not None
        return ChatCorpus(loaded(found), found.targets)
