"""A model as a folder of `transformers`: read one to train it further, write one that it opens.

Invariant: what is read computes here what it computes there, or it is refused with every reason
at once. Names and layouts are the same on both sides (the rotary halves too), so tensors are
copied, never permuted. The folder is data: no code of it is run, and pickles are refused.

The files of known names beside the weights (config, tokenizer, chat template, generation config,
card, licence) travel with them and come back byte for byte, and the weights in the dtype that the
config names. All others stay behind, programs and pickles among them. The length of the rows that
are trained is no property of the model, unless they are longer than the context that it had.

`transformers` itself is not needed; `families.py` has what the fields of a config.json mean.
"""

import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from contracts.terms.encoding import decode, encode
from contracts.terms.errors import Conflict, Malformed, NotFound, Refused, TooLarge
from training.config import BYTE_VOCABULARY, ModelConfig, whole_model
from training.content import need_target, what_is, why_no_json
from training.models.families import CONTEXT, DTYPES, config_fields, dtype_of, model_config
from training.models.parameters import Shape, model_shapes
from training.models.sources import FileSource, Source
from training.models.weights import (
    MAX_BESIDE_BYTES,
    Dtype,
    StoredWeights,
    Weights,
    bytes_beside,
    stored_weights,
    write_weights,
)

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
TOKENIZER = "tokenizer.json"
MAX_JSON_BYTES = 64 * 2**20
MAX_FILES_BYTES = MAX_BESIDE_BYTES - 2**20  # their names and lengths are written too
_BESIDE = {
    "config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "tokenizer.model",
    "spiece.model", "sentencepiece.bpe.model", "chat_template.json", "chat_template.jinja",
    "LICENSE", "LICENSE.md", "LICENSE.txt", "NOTICE", "NOTICE.md", "NOTICE.txt",
    "README", "README.md", "USE_POLICY.md",
}  # fmt: skip
"""Files that travel with the weights and are public; none is a program."""
_TEMPLATES = "additional_chat_templates/*.jinja"
_TEMPLATE = re.compile(r"additional_chat_templates/[A-Za-z0-9][\w-]{0,99}\.jinja", re.ASCII)
MOST_FILES = 64
Beside = Mapping[str, bytes]
"""Files beside the weights, by name."""


@dataclass(frozen=True)
class ModelFolder:
    """A model that was read; its weights are still on disk."""

    config: ModelConfig
    weights: StoredWeights
    tokenizer: Path | None
    beside: Beside  # the tokenizer's file is not among them: it travels by itself


def read_config(folder: Path) -> ModelConfig:
    """The model that a folder's config.json describes.

    Raises:
        NotFound: no folder, or none of `transformers`.
        Refused: it computes what we cannot; says all that is in the way.
        Malformed: no JSON, or a size is missing.
    """
    if folder.is_file():
        raise Refused(f"model: {folder} is a file; write the folder, {folder.parent}")
    if not folder.is_dir():
        raise NotFound(f"model: there is no folder {folder}")
    return model_config(_json(folder / CONFIG), str(folder))


def read_folder(folder: Path) -> ModelFolder:
    """Config, weights, tokenizer file and what else a folder holds.

    Raises: see `read_config`; besides
        Malformed, NotFinite: the weights do not fit the config, see `stored_weights`; a file is
            a pointer, or was cut.
        TooLarge: what is beside the weights is more than `MAX_FILES_BYTES`.
    """
    config = read_config(folder)
    wanted = model_shapes(config, whole_model(config))
    weights = StoredWeights({})
    for path, names in _files(folder, list(wanted)).items():
        shapes = {name: wanted[name] for name in names}
        weights |= stored_weights(FileSource(path), shapes, what=str(path))
    for name in weights:
        weights[name]  # refuses what is not finite
    need_target(folder / TOKENIZER, "model")
    tokenizer = folder / TOKENIZER if (folder / TOKENIZER).is_file() else None
    return ModelFolder(config, weights, tokenizer, _read_beside(folder))


def beside_in(file: Source, *, what: str) -> Beside:
    """The files that the weights of a start carry; none if they carry nothing.

    Raises:
        Malformed, TooLarge: they are not what `beside_bytes` makes.
    """
    if not (data := bytes_beside(file, what=what)):
        return {}
    files = decode(data, max_bytes=MAX_BESIDE_BYTES)
    if not isinstance(files, dict) or CONFIG not in files or len(files) > MOST_FILES:
        raise Malformed(f"{what} carries no {CONFIG}, or more than {MOST_FILES} files")
    found = {name: data for name, data in files.items() if isinstance(data, bytes)}
    if len(found) < len(files) or not all(map(_travels, found)):
        raise Malformed(f"{what} carries what is no file of a model")
    return found


def beside_bytes(files: Beside) -> bytes:
    """What `weights_source` puts beside the weights, to be read by `beside_in`."""
    return encode(dict(files))


def write_folder(
    folder: Path,
    config: ModelConfig,
    weights: Weights,
    tokenizer: bytes | None = None,
    beside: Beside | None = None,
) -> None:
    """Write a folder that `transformers.AutoModelForCausalLM.from_pretrained` opens.

    It appears under its name when it is whole. Without `beside` the model is a new one: without a
    tokenizer file the one of bytes is written, where the vocabulary is theirs.

    Args:
        folder: Where nothing is yet.
        config: What was trained; its sequence_length is that of the rows.
        weights: Of the whole model.
        tokenizer: The file that its data was made with.
        beside: What the folder that training started from had beside its weights.

    Raises:
        Conflict: there is something at `folder` already. Malformed: tensors are missing, or of
        another shape, or `beside` is of another model. NotFinite: of weights that are on disk.
        Refused: it cannot be written.
    """
    shapes = model_shapes(config, whole_model(config))
    if set(weights) != set(shapes):
        raise Malformed("these weights are not those of the whole model")
    dtype: Dtype = "F32"
    if beside:
        raw = _fields(beside[CONFIG], Path(CONFIG))
        dtype, files = DTYPES[dtype_of(raw)], dict(beside)
        given = model_config(raw, str(folder))
        length = given.sequence_length
        if replace(config, sequence_length=length, init_seed=0, adapter=None) != given:
            raise Malformed(f"the {CONFIG} beside the weights is of another model")
        if config.sequence_length > given.sequence_length:
            files[CONFIG] = _encoded(raw | {CONTEXT: config.sequence_length})
    else:
        files = {CONFIG: _encoded(config_fields(config))}
        if tokenizer is None and config.vocab_size == BYTE_VOCABULARY:
            tokenizer = _encoded(byte_tokenizer())
        if tokenizer is not None:
            files["tokenizer_config.json"] = _encoded(_tokenizer_config(config))
    if tokenizer is not None:
        files[TOKENIZER] = tokenizer
    write_whole(folder, weights, shapes, files, dtype=dtype)


def byte_tokenizer() -> dict[str, Any]:
    """A `tokenizers` file whose ids are the bytes of the text."""
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": step | {"use_regex": False},
        "post_processor": None,
        "decoder": step | {"use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {letter: byte for byte, letter in enumerate(_byte_letters())},
            "merges": [],
        },
    }


def _byte_letters() -> list[str]:
    # The printable stand-ins that byte-level tokenizers write for bytes (Radford et al. 2019):
    # visible Latin-1 stands for itself, the others are letters from 256 on.
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in visible]
    return [chr(byte if byte in visible else 256 + others.index(byte)) for byte in range(256)]


def _tokenizer_config(config: ModelConfig) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.sequence_length,
        "clean_up_tokenization_spaces": False,
    }


# ----------------------------------------------------------------------------------- files


def _read_beside(folder: Path) -> Beside:
    """What travels with the weights, its JSON complete and nothing a stand-in for a file."""
    found = (folder.glob("*"), folder.glob(_TEMPLATES))
    names = [path.relative_to(folder).as_posix() for paths in found for path in paths]
    taken = set(filter(_travels, names))
    if len(taken) > MOST_FILES:
        raise Refused(
            f"model: {folder} has {len(taken)} files beside its weights, at most {MOST_FILES} "
            "travel: move chat templates out of it"
        )
    for name in taken:
        need_target(folder / name, "model")
        if not (folder / name).resolve().is_relative_to(_root(folder)):
            raise Refused(
                f"model: {folder / name} is a link out of the folder, and what it points to would "
                "be public: put the file itself there, or take the link away"
            )
    sizes = {folder / name: (folder / name).stat().st_size for name in sorted(taken)}
    if sum(sizes.values()) > MAX_FILES_BYTES:
        raise TooLarge(
            f"model: the files beside the weights have {sum(sizes.values())} bytes, at most "
            f"{MAX_FILES_BYTES} travel: move {max(sizes, key=sizes.__getitem__)} out of the folder",
            size=sum(sizes.values()),
            limit=MAX_FILES_BYTES,
        )
    files = {}
    for path in filter(Path.is_file, sizes):
        data = files[path.relative_to(folder).as_posix()] = _read(path)
        if path.suffix == ".json":
            if "auto_map" in _fields(data, path):
                raise Refused(
                    f"model: auto_map in {path} names programs, which never travel: save it without"
                )
        elif (kind := what_is(data)) is not None:
            raise Malformed(f"model: {path} is {kind.name}: {kind.remedy}")
    return files


def _travels(name: str) -> bool:
    return name in _BESIDE or _TEMPLATE.fullmatch(name) is not None


def _root(folder: Path) -> Path:
    """Where links of a folder may lead: into itself, or the cache of the Hub that it is part of."""
    own = folder.resolve()
    return own.parents[1] if own.parent.name == "snapshots" else own


def _files(folder: Path, names: list[str]) -> dict[Path, list[str]]:
    """Which file holds which of these tensors."""
    need_target(folder / WEIGHTS, "model")
    if (folder / WEIGHTS).is_file():
        return {folder / WEIGHTS: names}
    if not (folder / INDEX).is_file():
        raise NotFound(
            f"model: {folder} has neither {WEIGHTS} nor {INDEX}; pickled weights are never read: "
            "save the model again with save_pretrained"
        )
    places = _json(folder / INDEX).get("weight_map")
    if not isinstance(places, Mapping):
        raise Malformed(f"model: {folder / INDEX} has no weight_map")
    files: dict[Path, list[str]] = {}
    for name in names:
        file = places.get(name)
        if not isinstance(file, str) or Path(file).name != file:
            raise Malformed(f"model: {folder / INDEX} names no file of the folder for {name}")
        files.setdefault(folder / file, []).append(name)
    for path in files:
        need_target(path, "model")
        if not path.is_file():
            raise NotFound(f"model: there is no {path}, which {INDEX} names: download it again")
    return files


def _json(path: Path) -> dict[str, Any]:
    need_target(path, "model")
    if not path.is_file():
        raise NotFound(f"model: there is no {path}: name a folder of transformers")
    if path.stat().st_size > MAX_JSON_BYTES:
        raise TooLarge(f"model: {path} is too large", limit=MAX_JSON_BYTES)
    return _fields(_read(path), path)


def _parsed(data: bytes, path: Path) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"model: {path} {why_no_json(data, error)}") from error


def _fields(data: bytes, path: Path) -> dict[str, Any]:
    value = _parsed(data, path)
    if not isinstance(value, dict):
        raise Malformed(f"model: {path} is no JSON object")
    return value


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Refused(f"model: cannot read {path}: {error.strerror}") from error


def _encoded(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def write_whole(
    folder: Path,
    weights: Weights,
    shapes: Mapping[str, Shape],
    files: Beside,
    *,
    dtype: Dtype = "F32",
    to: str = WEIGHTS,
) -> None:
    """Write a folder of one file of weights and of others, which appears when it is whole.

    Raises: see `write_folder`.
    """
    if folder.exists():
        raise Conflict(f"{folder} is there already: name a new folder")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as aside:
            whole = Path(aside) / "whole"
            whole.mkdir()
            for name, data in files.items():
                (whole / name).parent.mkdir(exist_ok=True)
                (whole / name).write_bytes(data)
            with (whole / to).open("wb") as file:
                write_weights(file, weights, shapes, dtype=dtype)
            os.rename(whole, folder)
    except OSError as error:
        raise Refused(f"cannot write {folder}: {error.strerror}") from error
