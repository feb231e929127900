"""Taking over a mutant's code in a process that has imported everything."""

from __future__ import annotations

import collections
import gc
import sys
import types
from collections.abc import Iterator
from pathlib import Path

from scripts.mutate.mutants import CHECKOUT, Mutant


def nested(code: types.CodeType) -> list[types.CodeType]:
    return [const for const in code.co_consts if isinstance(const, types.CodeType)]


def is_function(code: types.CodeType) -> bool:
    return bool(code.co_flags & 1)  # CO_OPTIMIZED: not a module's or a class's body


def pairs_of(old: types.CodeType, new: types.CodeType) -> Iterator[tuple[types.CodeType, ...]]:
    yield old, new
    ours, theirs = nested(old), nested(new)
    if len(ours) == len(theirs):
        for pair in zip(ours, theirs):
            yield from pairs_of(*pair)
    else:
        by_name = {code.co_qualname: code for code in theirs}
        for code in ours:
            if code.co_qualname in by_name:
                yield from pairs_of(code, by_name[code.co_qualname])


def own_part(code: types.CodeType) -> tuple:
    """Without the functions in it."""
    plain = [const for const in code.co_consts if not isinstance(const, types.CodeType)]
    return code.co_code, code.co_names, repr(plain)


def functions_by_file() -> dict[str, list[types.FunctionType]]:
    """The functions of the package that there are, wrapped ones and methods too."""
    found = collections.defaultdict(list)
    for one in gc.get_objects():
        if type(one) is types.FunctionType:  # a dead weakref.proxy has no class to ask for
            found[one.__code__.co_filename].append(one)
    return found


def take_over(mutant: Mutant, functions: list[types.FunctionType]) -> None:
    """Gives every function of the module the mutant's code. Where the body of the module or of a
    class differs, that is run once more, and what others have imported from it is replaced.
    """
    file = str(CHECKOUT / "robomimic_ddp" / mutant.path)
    name = "robomimic_ddp." + mutant.path[: -len(".py")].replace("/", ".")
    old = compile(Path(file).read_text(encoding="utf-8"), file, "exec")
    new = compile(mutant.source, file, "exec")
    pairs = list(pairs_of(old, new))
    if any(own_part(a) != own_part(b) for a, b in pairs if not is_function(a)):
        run_again(sys.modules[name.removesuffix(".__init__")], new)
    table = {a: b for a, b in pairs if is_function(a)}
    for function in functions:
        code = table.get(function.__code__)
        if code is not None and len(code.co_freevars) == len(function.__code__.co_freevars):
            function.__code__ = code
    for value in vars(sys.modules[name.removesuffix(".__init__")]).values():
        if hasattr(value, "cache_clear"):  # of functools: what the tests before have computed
            value.cache_clear()


def run_again(module: types.ModuleType, code: types.CodeType) -> None:
    before = dict(vars(module))
    exec(code, vars(module))
    after = vars(module)
    replaced = {
        id(value): after[name]
        for name, value in before.items()
        if getattr(value, "__module__", None) == module.__name__
    }
    for other in list(sys.modules.values()):
        if not getattr(other, "__name__", "").startswith(("robomimic_ddp", "tests")):
            continue
        for name, value in list(vars(other).items()):
            if id(value) in replaced:
                setattr(other, name, replaced[id(value)])
            elif other is not module and name in before and value is before[name]:
                setattr(other, name, after[name])
