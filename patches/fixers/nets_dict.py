"""The nets `obs_encoder` and `noise_pred_net`, bare values of an `nn.ModuleDict` (ARISE lineage).

A value in DataParallel is left to the fixer `data_parallel`.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from robomimic_ddp.patches.cst import api_calls, argument, calls, settle, unrecognised, wrap
from robomimic_ddp.patches.fixers.data_parallel import DATA_PARALLEL
from robomimic_ddp.patches.outcomes import Fixer, NotPresent, Outcome
from robomimic_ddp.patches.source import Source, walk

IN_DATA_PARALLEL = "the nets are put into DataParallel, see data_parallel"
NETS = ("obs_encoder", "noise_pred_net")


def fix(source: Source) -> Outcome:
    """`"obs_encoder": net` becomes `"obs_encoder": DDPUtils.parallel(net)`, likewise
    `noise_pred_net` and any further net beside them, which would train without being synchronised.
    """
    edits, done, seen = [], [], set()
    for module_dict in calls(source, source.module, "torch.nn.ModuleDict"):
        items = list(_items(source, module_dict))
        if not {key for key, _ in items}.intersection(NETS):
            continue
        for key, net in ((key, net) for key, value in items for net in _alternatives(value)):
            seen.add(key)
            if api_calls(source, net, "parallel"):
                done.append(net)
            elif not any(calls(source, net, *DATA_PARALLEL)):
                edits.append(wrap(source, net, "parallel"))
    if not seen and _in_data_parallel(source):
        return NotPresent(IN_DATA_PARALLEL)
    missing = [name for name in NETS if name not in seen]
    if missing:
        where = next(_mentions(source), source.module)
        return unrecognised(
            source, where, f"no nn.ModuleDict is made with the net {' or '.join(missing)}"
        )
    bare = [net for net in done if len(getattr(net, "args", ())) == 1]
    return settle(edits, bare, IN_DATA_PARALLEL)


def _in_data_parallel(source: Source) -> bool:
    """Whether nets go through DataParallel anywhere in the file, now or before `apply`."""
    before = any(calls(source, source.module, *DATA_PARALLEL))
    keyed = (
        argument(call, 1, "module_key") for call in api_calls(source, source.module, "parallel")
    )
    return before or any(key is not None for key in keyed)


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
    words=("ModuleDict", "obs_encoder", "noise_pred_net"),
    fix=fix,
    absent="no file with 'ModuleDict', 'obs_encoder' and 'noise_pred_net': the host seems to have "
    "no diffusion policy, and only its nets are made parallel",
    by_hand="write DDPUtils.parallel(net) around each net where it is put into self.nets",
)
