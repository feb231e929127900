"""A net in torch's DataParallel, however the class is named, wherever it stands (DROID family).

The host reads `.module` at inference and its checkpoints have `module.` in their keys;
`module_key=True` keeps both.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from robomimic_ddp.patches.edits import (
    api_calls,
    api_name,
    argument,
    calls,
    keyword,
    references,
    unrecognised,
)
from robomimic_ddp.patches.outcomes import Fixer, Found
from robomimic_ddp.patches.syntax.source import Edit, Source, walk

DATA_PARALLEL = (
    "torch.nn.DataParallel",
    "torch.nn.parallel.DataParallel",
    "torch.nn.parallel.data_parallel.DataParallel",
)


def find(source: Source, module: cst.Module) -> Iterator[Found]:
    """`DataParallel(net, device_ids=...)` becomes `DDPUtils.parallel(net, module_key=True)`."""
    wrappings = list(calls(source, module, *DATA_PARALLEL))
    for call in wrappings:
        if argument(call, 0, "module") is None:
            yield unrecognised(source, call, "DataParallel is called without a net")
    accounted = {call.func for call in wrappings} | _makes_no_net(source)
    for reference in references(module):
        if reference not in accounted and source.resolves(reference, *DATA_PARALLEL):
            why = "DataParallel is subclassed, stored or passed on, not called"
            yield unrecognised(source, reference, why)
    for call in wrappings:
        yield Edit(call, lambda updated: _parallel(source, updated))
    yield from keyed_calls(source, module)


def keyed_calls(source: Source, node: cst.CSTNode) -> list[cst.Call]:
    """Return what this fixer has made of DataParallel at or under `node`."""
    ours = api_calls(source, node, "parallel")
    return [call for call in ours if argument(call, 1, "module_key") is not None]


def _parallel(source: Source, call: cst.Call) -> cst.Call:
    net = next(arg for arg in call.args if arg.keyword is None or arg.keyword.value == "module")
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    if isinstance(net.comma, cst.Comma) and net is not call.args[-1]:
        comma = net.comma  # the line break of a formatter, if there is one
    key = keyword("module_key", "True").with_changes(
        comma=call.args[-1].comma, whitespace_after_arg=call.args[-1].whitespace_after_arg
    )
    return call.with_changes(
        func=api_name(source, "parallel"), args=[cst.Arg(net.value, comma=comma), key]
    )


def _makes_no_net(source: Source) -> set[cst.CSTNode]:
    """Mentions of the class in imports and in isinstance tests."""
    nodes = [*walk(source.module, cst.Import), *walk(source.module, cst.ImportFrom)]
    nodes += calls(source, source.module, "builtins.isinstance")
    return {reference for node in nodes for reference in references(node)}


FIXER = Fixer(
    "nets",
    ("algo/*.py", "models/*.py"),
    find,
    "write DDPUtils.parallel(net, module_key=True) where the net is put into DataParallel",
    words=("DataParallel|module_key=True",),
    missing="no net is put into DataParallel",
)
