"""The nets `obs_encoder` and `noise_pred_net`, bare values of an `nn.ModuleDict` (ARISE lineage).

A value in DataParallel is left to the fixer `data_parallel`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import libcst as cst

from robomimic_ddp.patches.cst import api_calls, argument, calls, settle, unrecognised, wrap
from robomimic_ddp.patches.fixers.data_parallel import DATA_PARALLEL
from robomimic_ddp.patches.imports import dotted
from robomimic_ddp.patches.outcomes import AlreadyApplied, Fixer, NotPresent, Outcome
from robomimic_ddp.patches.source import Source, walk

IN_DATA_PARALLEL = "the nets are put into DataParallel, see data_parallel"
AROUND = (
    "DataParallel goes around nets that are in an nn.ModuleDict already, which are made parallel "
    "themselves: one inside the other would reduce gradients twice"
)
NETS = ("obs_encoder", "noise_pred_net")


def fix(source: Source) -> Outcome:
    """`"obs_encoder": net` becomes `"obs_encoder": DDPUtils.parallel(net)`, likewise
    `noise_pred_net` and any further net beside them, which would train without being synchronised.
    """
    edits, done, seen = [], [], set()
    for module_dict, items in _dicts_of_nets(source):
        wrapped = _bound_to_data_parallel(source, module_dict)
        bare = []
        for key, net in ((key, net) for key, value in items for net in _alternatives(value)):
            seen.add(key)
            if api_calls(source, net, "parallel"):
                done.append(net)
            elif not any(calls(source, net, *DATA_PARALLEL)) and _stands_for(net) not in wrapped:
                bare.append(net)
        around = _around(source, module_dict, bare)
        if around is not None:
            return unrecognised(source, around, AROUND)
        edits += [wrap(source, net, "parallel") for net in bare]
    if not seen and _in_data_parallel(source):
        return NotPresent(IN_DATA_PARALLEL)
    if not seen.issuperset(NETS):
        return _other_nets(source)
    plain = [net for net in done if len(getattr(net, "args", ())) == 1]
    return settle(edits, plain, IN_DATA_PARALLEL)


def _other_nets(source: Source) -> Outcome:
    """Of a file that makes no nn.ModuleDict with both nets: what its user has wrapped by hand is
    fine, whatever the nets are called; another algorithm has no part in this seam.
    """
    by_hand = api_calls(source, source.module, "parallel")
    if by_hand:
        return AlreadyApplied(tuple(by_hand))
    where = next(_mentions(source), None)
    dicts = list(calls(source, source.module, "torch.nn.ModuleDict"))
    diffuses = any(word in source.data for word in (b"noise_pred", b"diffusers"))
    if where is None and not (diffuses and dicts):
        return NotPresent("it makes no nets of a diffusion policy")
    found = [item for one in dicts for item in _items(source, one)] + list(_put_in(source))
    nets = [key for key, value in found if not _is_dict(value)]
    keys = ", ".join(dict.fromkeys(nets)) or "that are not written in it"
    why = (
        f"the keys of nn.ModuleDict are {keys}; expected {' and '.join(NETS)} in one of them. On "
        "several ranks its algorithm is refused"
    )
    outcome = unrecognised(source, where or dicts[0], why)
    return replace(outcome, spares_others=True)


def _is_dict(value: cst.BaseExpression) -> bool:
    """Whether the value is a ModuleDict whose own keys are written in it."""
    return (
        isinstance(value, cst.Call)
        and dotted(value.func).endswith("ModuleDict")
        and bool(value.args)
    )


def _dicts_of_nets(source: Source) -> Iterator[tuple[cst.Call, list]]:
    """Each nn.ModuleDict that one of the two nets is put into, with its keys and values."""
    for module_dict in calls(source, source.module, "torch.nn.ModuleDict"):
        items = list(_items(source, module_dict))
        if {key for key, _ in items}.intersection(NETS):
            yield module_dict, items


def _bound_to_data_parallel(source: Source, module_dict: cst.Call) -> set[str]:
    """Names for a net in DataParallel, and for functions that put one there, seen from the
    function that makes `module_dict`.
    """
    if not _in_data_parallel(source):
        return set()
    scope = _scope(source, module_dict)
    names = {
        function.name.value
        for function in walk(source.module, cst.FunctionDef)
        if _keyed(source, function) and not _holds(function, module_dict)
    }
    for assign in walk(scope, cst.Assign):
        if _keyed(source, assign.value) and not _holds(assign.value, module_dict):
            for target in (target.target for target in assign.targets):
                names |= _names(target) if isinstance(target, (cst.Name, cst.Tuple)) else set()
    return names


def _around(
    source: Source, module_dict: cst.Call, bare: list[cst.BaseExpression]
) -> cst.Call | None:
    """A DataParallel around nets that stand `bare` in the dict, or around the dict."""
    if not bare or not _in_data_parallel(source):
        return None
    scope, names = _scope(source, module_dict), {"nets"}
    for assign in walk(scope, cst.Assign):
        if _holds(assign.value, module_dict):
            names |= _names(*assign.targets) - {"self"}
    for call in _keyed(source, scope):
        if names & _names(*call.args[:1]) and not _holds(module_dict, call):
            return call
    return None


def _keyed(source: Source, node: cst.CSTNode) -> list[cst.Call]:
    """Calls that put a net into DataParallel, or did before `apply`."""
    ours = api_calls(source, node, "parallel")
    return [
        *calls(source, node, *DATA_PARALLEL),
        *(call for call in ours if argument(call, 1, "module_key") is not None),
    ]


def _stands_for(net: cst.BaseExpression) -> str:
    """The name that a value is, or that it is a call of; else ""."""
    return dotted(net.func if isinstance(net, cst.Call) else net).rpartition(".")[2]


def _scope(source: Source, node: cst.CSTNode) -> cst.CSTNode:
    """The innermost function around `node`, or the module."""
    functions = [one for one in walk(source.module, cst.FunctionDef) if _holds(one, node)]
    return functions[-1] if functions else source.module


def _names(*nodes: cst.CSTNode) -> set[str]:
    return {name.value for node in nodes for name in walk(node, cst.Name)}


def _holds(node: cst.CSTNode, inner: cst.CSTNode) -> bool:
    return any(one is inner for one in walk(node, type(inner)))


def _in_data_parallel(source: Source) -> bool:
    """Whether nets go through DataParallel anywhere in the file, now or before `apply`."""
    return bool(_keyed(source, source.module))


def _items(source: Source, module_dict: cst.Call) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Key and value of what this ModuleDict itself is made of: a dict display, or `dict(...)`."""
    content = module_dict.args[0].value if module_dict.args else None
    if isinstance(content, cst.Dict):
        for element in content.elements:
            if isinstance(element, cst.DictElement) and isinstance(element.key, cst.SimpleString):
                yield element.key.evaluated_value, element.value
    elif isinstance(content, cst.Call) and source.resolves(content.func, "builtins.dict"):
        for arg in content.args:
            if arg.keyword is not None:
                yield arg.keyword.value, arg.value


def _put_in(source: Source) -> Iterator[tuple[str, cst.BaseExpression]]:
    """Key and net of each `self.nets["key"] = net`."""
    for assign in walk(source.module, cst.Assign):
        for target in (one.target for one in assign.targets):
            named = isinstance(target, cst.Subscript) and dotted(target.value) == "self.nets"
            index = target.slice[0].slice if named else None
            if isinstance(index, cst.Index) and isinstance(index.value, cst.SimpleString):
                yield index.value.evaluated_value, assign.value


def _alternatives(value: cst.BaseExpression) -> list[cst.BaseExpression]:
    """The nets that a value may be: both sides of `a if condition else b`."""
    if isinstance(value, cst.IfExp):
        return _alternatives(value.body) + _alternatives(value.orelse)
    return [value]


def _mentions(source: Source) -> Iterator[cst.CSTNode]:
    return (text for text in walk(source.module, cst.SimpleString) if text.evaluated_value in NETS)


FIXER = Fixer(
    seam="nets",
    files=("algo/*.py",),
    words=("ModuleDict", "noise_pred|diffusers|robomimic_ddp"),
    fix=fix,
    absent="no file with 'ModuleDict' and 'noise_pred' or 'diffusers': the host seems to have no "
    "diffusion policy of a known shape, and only its nets are made parallel",
    by_hand="write DDPUtils.parallel(net) around each net where it is put into self.nets",
)
