"""Every leaf of a decoded value by its path, and the value with one leaf altered."""

import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

Path = tuple[str | int, ...]


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """All leaves (what is neither map nor list), in order."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield from leaves(child, (*path, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from leaves(child, (*path, index))
    else:
        yield path, value


def field_path(value: Any, path: Path) -> str:
    """`path` with list indices as stars, and the kind of message where there is one."""
    names: list[str] = []
    for key in path:
        if isinstance(value, dict) and isinstance(value.get("kind"), str):
            names.append(value["kind"])
        names.append("*" if isinstance(key, int) else key)
        value = value[key]
    return "/".join(names)


def one_of_every_field_path(value: Any, seed: int) -> dict[str, Path]:
    """A leaf of every field path, chosen by seed."""
    chance, by_field = random.Random(seed), dict[str, list[Path]]()
    for path, _ in leaves(value):
        by_field.setdefault(field_path(value, path), []).append(path)
    return {name: chance.choice(paths) for name, paths in by_field.items()}


def altered(value: Any, path: Path, chance: random.Random) -> Any:
    """A copy of `value` whose leaf at `path` is another one of the same type."""
    return replaced(value, path, lambda leaf: _another(leaf, chance))


def replaced(value: Any, path: Path, change: Callable[[Any], Any]) -> Any:
    """A copy of `value` in which what stands at `path`, a leaf or more, is changed."""
    changed = deepcopy(value)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = change(holder[path[-1]])
    return changed


def _another(leaf: Any, chance: random.Random) -> Any:
    match leaf:
        case bool():
            return not leaf
        case int():
            return leaf + chance.choice((1, -1, 256)) if leaf else 1
        case bytes():
            return _flipped(leaf, chance)
        case str():
            return leaf + "x" if chance.random() < 0.5 or not leaf else leaf[:-1]
        case None:
            return chance.choice((0, b"\0" * 32))
    raise AssertionError(f"a file holds no {type(leaf).__name__}")


def _flipped(leaf: bytes, chance: random.Random) -> bytes:
    if not leaf:
        return b"\x01"
    at = chance.randrange(len(leaf))
    return leaf[:at] + bytes([leaf[at] ^ 1 << chance.randrange(8)]) + leaf[at + 1 :]
