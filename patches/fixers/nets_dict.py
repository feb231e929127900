"""The nets `obs_encoder` and `noise_pred_net`, bare values of an `nn.ModuleDict` (ARISE lineage).

A value in DataParallel is left to the fixer `data_parallel`. Other nets need no edit: a run
synchronises them optimizer by optimizer.
"""

from __future__ import annotations

import libcst as cst

from robomimic_ddp.patches.edits import (
    api_calls,
    calls,
    names_in,
    text_of,
    unrecognised,
    wrap,
)
from robomimic_ddp.patches.fixers.data_parallel import DATA_PARALLEL, keyed_calls
from robomimic_ddp.patches.outcomes import Fixer, Found, NotPresent
from robomimic_ddp.patches.syntax.imports import dotted
from robomimic_ddp.patches.syntax.source import Source, walk

AROUND = (
    "DataParallel goes around nets that are in an nn.ModuleDict already, which are made parallel "
    "themselves: one inside the other would reduce gradients twice"
)
NETS = ("obs_encoder", "noise_pred_net")


def find(source: Source, module: cst.Module) -> list[Found]:
    """`"obs_encoder": net` becomes `"obs_encoder": DDPUtils.parallel(net)`, as other nets there."""
    places, seen = [], set()
    for module_dict in calls(source, module, "torch.nn.ModuleDict"):
        items = _items(source, module_dict)
        if not {key for key, _ in items}.intersection(NETS):
            continue
        wrapped, bare = _bound_to_data_parallel(source, module_dict), []
        for key, net in ((key, net) for key, value in items for net in _alternatives(value)):
            seen.add(key)
            name = dotted(net.func if isinstance(net, cst.Call) else net).rpartition(".")[2]
            if api_calls(source, net, "parallel"):
                places += [net] if len(getattr(net, "args", ())) == 1 else []
            elif not any(calls(source, net, *DATA_PARALLEL)) and name not in wrapped:
                bare.append(net)
        around = _around(source, module_dict, bare)
        if around is not None:
            return [unrecognised(source, around, AROUND)]
        places += [wrap(source, net, "parallel") for net in bare]
    has_both_or_none = seen.issuperset(NETS) or not seen and _in_data_parallel(source, module)
    return places if has_both_or_none else _other_nets(source, module)


def _other_nets(source: Source, module: cst.Module) -> list[Found]:
    """Return the findings of a file that makes no nn.ModuleDict with both nets: what its user has
    wrapped by hand is fine, whatever the nets are called; a diffusion policy's nets under other
    keys are named.
    """
    by_hand = api_calls(source, module, "parallel")
    if by_hand:
        return by_hand
    where = next((text for text in walk(module, cst.SimpleString) if text_of(text) in NETS), None)
    dicts = list(calls(source, module, "torch.nn.ModuleDict"))
    diffuses = any(word in source.data for word in (b"noise_pred", b"diffusers"))
    if where is None and not (diffuses and dicts):
        return [NotPresent("it makes no nets of a diffusion policy")]
    why = (
        f"no nn.ModuleDict is written with the keys {' and '.join(NETS)}. Other nets are "
        "synchronised by their optimizers, as other algorithms' are; ddp.precision, ddp.compile "
        "and DataParallel do not reach them"
    )
    return [unrecognised(source, where or dicts[0], why, blocks=False)]


def _bound_to_data_parallel(source: Source, module_dict: cst.Call) -> set[str]:
    """Return names of nets in DataParallel, and of functions that put one there, near the dict."""
    names = set()
    for function in walk(source.module, cst.FunctionDef):
        if _in_data_parallel(source, function) and not _holds(function, module_dict):
            names.add(function.name.value)
    for assign in walk(_scope(source, module_dict), cst.Assign):
        if _in_data_parallel(source, assign.value) and not _holds(assign.value, module_dict):
            for target in (target.target for target in assign.targets):
                names |= names_in(target) if isinstance(target, (cst.Name, cst.Tuple)) else set()
    return names


def _around(
    source: Source, module_dict: cst.Call, bare: list[cst.BaseExpression]
) -> cst.Call | None:
    """Return a DataParallel around nets that stand `bare` in the dict, or around the dict."""
    scope, names = _scope(source, module_dict), {"nets"}
    for assign in walk(scope, cst.Assign):
        if _holds(assign.value, module_dict):
            names |= names_in(*assign.targets) - {"self"}
    for call in _in_data_parallel(source, scope) if bare else ():
        if names & names_in(*call.args[:1]) and not _holds(module_dict, call):
            return call
    return None


def _in_data_parallel(source: Source, node: cst.CSTNode) -> list[cst.Call]:
    """Return the calls that put a net into DataParallel, or did before `apply`."""
    return [*calls(source, node, *DATA_PARALLEL), *keyed_calls(source, node)]


def _scope(source: Source, node: cst.CSTNode) -> cst.CSTNode:
    """Return the innermost function around `node`, or the module."""
    functions = [
        function for function in walk(source.module, cst.FunctionDef) if _holds(function, node)
    ]
    return functions[-1] if functions else source.module


def _holds(node: cst.CSTNode, inner: cst.CSTNode) -> bool:
    return any(child is inner for child in walk(node, type(inner)))


def _items(source: Source, module_dict: cst.Call) -> list[tuple[str, cst.BaseExpression]]:
    """Key and value of what this ModuleDict itself is made of: a dict display, or `dict(...)`."""
    content = module_dict.args[0].value if module_dict.args else None
    if isinstance(content, cst.Dict):
        pairs = (item for item in content.elements if isinstance(item, cst.DictElement))
        return [
            (text_of(pair.key), pair.value)
            for pair in pairs
            if isinstance(pair.key, cst.SimpleString)
        ]
    if isinstance(content, cst.Call) and source.resolves(content.func, "builtins.dict"):
        return [(arg.keyword.value, arg.value) for arg in content.args if arg.keyword is not None]
    return []


def _alternatives(value: cst.BaseExpression) -> list[cst.BaseExpression]:
    """Return the nets that a value may be: both sides of `a if condition else b`."""
    if isinstance(value, cst.IfExp):
        return _alternatives(value.body) + _alternatives(value.orelse)
    return [value]


FIXER = Fixer(
    "nets",
    ("algo/*.py",),
    find,
    "write DDPUtils.parallel(net) around each net where it is put into self.nets",
    words=("ModuleDict", "noise_pred|diffusers|parallel("),
    missing="the nets are put into DataParallel, see data_parallel",
    absent="no file with 'ModuleDict' and 'noise_pred' or 'diffusers', so no diffusion policy of a "
    "known shape; nets of other algorithms need no edit, their optimizers synchronise them",
)
