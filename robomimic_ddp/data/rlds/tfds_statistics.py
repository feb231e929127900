"""Hosts with their own pipeline (octo): its statistics are computed once, and not by every rank.

octo's `get_dataset_statistics(dataset, hash_dependencies, save_dir)` reads the whole dataset, and
keeps what it found as a JSON file beside it, which is written in place. Ranks that come together
would each read everything, and might find a file that another is still writing.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, Callable

from robomimic_ddp.config.swapped import swapped
from robomimic_ddp.data.rlds.tf_import import import_tensorflow
from robomimic_ddp.distributed import group
from robomimic_ddp.errors import DataError

NAME = "get_dataset_statistics"
ITS_OWN = "hash_dependencies"
"""The parameter by which octo's function is known, in octo and in copies of it."""


@contextmanager
def computed_once() -> Iterator[None]:
    """In the block octo's `get_dataset_statistics`, in whatever loaded module, is `once` of itself.

    Not collective itself. Modules that are loaded later, but for octo's own, keep theirs.
    """
    import_tensorflow()  # in the order that it needs, before octo does
    try:
        importlib.import_module("octo.data.dataset")
    except ImportError:
        pass  # no octo here, or one that the host will say more about
    with ExitStack() as stack:
        for module in _holders():
            stack.enter_context(swapped(module, NAME, once(getattr(module, NAME))))
        yield


def _holders() -> list[ModuleType]:
    found = []
    for module in list(sys.modules.values()):
        function = vars(module).get(NAME) if isinstance(module, ModuleType) else None
        if inspect.isfunction(function) and ITS_OWN in inspect.signature(function).parameters:
            found.append(module)
    return found


def once(function: Callable) -> Callable:
    """`function`, computed on the main rank while the others wait, as long as they live.

    The wrapper is collective: every rank gets the main rank's value, or its error: on the others
    as a DataError.
    """

    @functools.wraps(function)
    def told(*args: Any, **kwargs: Any) -> Any:
        value, failure = None, None
        with group.without_time_limit() as waiting:
            if group.is_main():
                try:
                    value = function(*args, **kwargs)
                # Whatever it is, the ranks that wait must hear of it.
                except Exception as error:
                    failure = error
            said = None if failure is None else f"{type(failure).__name__}: {failure}"
            value, said = group.gather_objects((value, said), within=waiting)[0]
        if failure is not None:
            raise failure
        if said is not None:
            raise DataError(f"the main rank could not compute statistics: {said}").on_all_ranks()
        return value

    return told
