"""Is every public name documented, and do lists that repeat the code still equal it?"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.terms import errors
from contracts.terms.errors import TallystickError
from tallystick.cli.main import EXIT_CODES, NOUNS, exit_code
from tests.architecture.checkout import PACKAGES, ROOT, module_name, parsed, sources

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def public_definitions(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Definition]]:
    """Classes and functions in `body` whose names have no leading underscore, nested ones too."""
    for node in body:
        if not isinstance(node, Definition) or node.name.startswith("_"):
            continue
        yield f"{prefix}.{node.name}", node
        if isinstance(node, ast.ClassDef):
            yield from public_definitions(node.body, f"{prefix}.{node.name}")


def undocumented(source: Path) -> list[str]:
    """Dotted names in one file that lack a docstring."""
    tree, module = parsed(source), module_name(source)
    missing = [] if ast.get_docstring(tree) else [module]
    definitions = public_definitions(tree.body, module)
    return missing + [name for name, node in definitions if not ast.get_docstring(node)]


def test_public_names__all_packages__are_documented() -> None:
    assert [name for source in sources() for name in undocumented(source)] == []


def test_packages__on_disk__have_a_readme() -> None:
    assert [name for name in PACKAGES if not (ROOT / name / "README.md").is_file()] == []


def test_folders_with_code__all_packages__are_packages() -> None:
    folders = {source.parent for source in sources() if "migrations" not in source.parts}

    assert [str(folder) for folder in folders if not (ROOT / folder / "__init__.py").exists()] == []


def documented_tree() -> set[tuple[str, str]]:
    """(class, parent) pairs that the docstring of `contracts.terms.errors` draws."""
    pairs, parents = set(), {}
    for line in (errors.__doc__ or "").splitlines():
        bullet, _, rest = line.strip().partition(" ")
        if bullet not in ("*", "x", "-"):
            continue
        depth, name = (len(line) - len(line.lstrip())) // 2, rest.split()[0]
        parents[depth] = name
        if depth:
            pairs.add((name, parents[depth - 1]))
    return pairs


def actual_tree(root: type[TallystickError]) -> set[tuple[str, str]]:
    """(class, parent) pairs below `root` that the module defines."""
    children = [kind for kind in root.__subclasses__() if kind.__module__ == errors.__name__]
    pairs = {(child.__name__, root.__name__) for child in children}
    return pairs.union(*(actual_tree(child) for child in children))


def all_errors(root: type[TallystickError]) -> list[type[TallystickError]]:
    """`root` and every class below it."""
    return [root] + [kind for child in root.__subclasses__() for kind in all_errors(child)]


def test_error_docstring__tree__equals_the_classes() -> None:
    assert documented_tree() == actual_tree(TallystickError)


def test_error_codes__all_classes__are_unique() -> None:
    kinds = [kind for kind in all_errors(TallystickError) if kind.__module__ == errors.__name__]

    assert len({kind.code for kind in kinds}) == len(kinds)


def test_exit_codes__every_key__is_the_code_of_an_error() -> None:
    assert set(EXIT_CODES) <= {kind.code for kind in all_errors(TallystickError)}


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.Malformed, 2),
        (errors.NotFound, 3),
        (errors.Forbidden, 4),
        (errors.NoMatch, 5),
        (errors.Conflict, 6),
        (errors.DeadlineExceeded, 7),
        (errors.ServiceUnreachable, 8),
    ],
)
def test_exit_code__error__is_that_of_the_design(kind: type[TallystickError], code: int) -> None:
    assert exit_code(kind("said why")) == code


def test_nouns__each__has_its_module() -> None:
    modules = {module_name(source) for source in sources()}

    assert [n.word for n in NOUNS if f"tallystick.cli.{n.word}" not in modules] == []
