"""Does a test notice when one line is wrong? Changed copies of modules, beside the real ones.

`mutant(module, old, new)` is a copy of `module` in which `old`, which must occur exactly once,
reads `new`. `through` names modules that import it: they are executed again on top of the changed
one, and the last of them is returned. Nothing of the real modules changes.
"""

import importlib.util
import inspect
import sys
from types import ModuleType


def mutant(module: ModuleType, old: str, new: str, *through: ModuleType) -> ModuleType:
    """The last of `module` and `through`, as it behaves with `old` replaced by `new`.

    Raises:
        LookupError: `old` does not occur exactly once, so the test must be written anew.
    """
    source = inspect.getsource(module)
    count = source.count(old)
    if count != 1:
        raise LookupError(f"{old!r} occurs {count} times in {module.__name__}")
    changed = _executed(module, source.replace(old, new))
    replaced = {module.__name__: changed}
    for each in through:
        replaced[each.__name__] = changed = _executed(each, inspect.getsource(each), replaced)
    return changed


def _executed(
    module: ModuleType, source: str, replaced: dict[str, ModuleType] | None = None
) -> ModuleType:
    spec = module.__spec__
    assert spec is not None
    copy = importlib.util.module_from_spec(spec)
    real = {name: sys.modules[name] for name in [*(replaced or {}), module.__name__]}
    sys.modules |= {**(replaced or {}), module.__name__: copy}
    try:
        exec(compile(source, f"<mutant of {module.__name__}>", "exec"), copy.__dict__)
    finally:
        sys.modules |= real
    return copy
