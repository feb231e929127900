"""Faults of hosts' own that the retrofit would be blamed for. `status` names them; nothing edits
them unasked.

Each is recognised by the code that fails, not by the repository it is in.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass

from robomimic_ddp.patches.hosts import Host
from robomimic_ddp.patches.python import dotted, syntax_tree

_TRAIN_UTILS = "utils/train_utils.py"
_SCRIPTS = ("scripts/train*.py",)


@dataclass(frozen=True)
class KnownFault:
    """`what` goes wrong, at `line` (1-based) of `path` in the package."""

    path: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.what}"


def find_known_faults(host: Host) -> list[KnownFault]:
    """The host's faults, by file and line; none from files that do not parse."""
    finders = (
        _validation_path,
        _number_of_steps,
        _validation_log,
        _unbound_numpy,
        _unet,
        _load_from,
        _past_the_wrapper,
        _tensorflow_first,
        _resume_ignored,
    )
    found = {fault for finder in finders for fault in finder(host)}
    return sorted(found, key=lambda fault: (fault.path, fault.line, fault.what))


def _validation_path(host: Host) -> Iterator[KnownFault]:
    tree = _tree(host, _TRAIN_UTILS)
    lists = {dotted(node.iter) for node in ast.walk(tree) if isinstance(node, ast.comprehension)}
    for call in _calls(tree, "expanduser"):
        if call.args and dotted(call.args[0]) in lists & {"config.train.data"}:
            what = "experiment.validate=true fails here: train.data is a list, read as one path"
            yield KnownFault(_TRAIN_UTILS, call.lineno, what)
            return


def _number_of_steps(host: Host) -> Iterator[KnownFault]:
    function = _function(_tree(host, _TRAIN_UTILS), "run_epoch")
    if function is None or "num_steps" not in [arg.arg for arg in function.args.args]:
        return
    stores = (node for node in ast.walk(function) if isinstance(node, ast.Name))
    if any(node.id == "num_steps" and isinstance(node.ctx, ast.Store) for node in stores):
        return
    for call in _calls(function, "range"):
        if [dotted(arg) for arg in call.args] == ["num_steps"]:
            what = "epoch_every_n_steps=null (a whole pass) fails here: range(None)"
            yield KnownFault(_TRAIN_UTILS, call.lineno, what)


def _validation_log(host: Host) -> Iterator[KnownFault]:
    """run_epoch returns (log, iterator), and the validation takes it for the log."""
    function = _function(_tree(host, _TRAIN_UTILS), "run_epoch")
    returns = [
        node.value
        for node in ast.walk(function or ast.Module([], []))
        if isinstance(node, ast.Return)
    ]
    if not returns or not all(isinstance(value, ast.Tuple) for value in returns):
        return
    for path in host.files(_SCRIPTS):
        for node in ast.walk(_tree(host, path)):
            is_name = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
            if is_name and _is_call(node.value, "run_epoch") and _validates(node.value):
                what = "experiment.validate=true fails here: run_epoch returns (log, iterator)"
                yield KnownFault(path, node.lineno, what)


def _unbound_numpy(host: Host) -> Iterator[KnownFault]:
    for path in host.files(("utils/*rlds*.py",)):
        tree = _tree(host, path)
        bound = set(dir(builtins)) | {
            (alias.asname or alias.name).split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for alias in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and "np" not in bound:
                uses = [item for item in ast.walk(node) if dotted(item) == "np"]
                if uses:
                    what = f"{node.name} uses np, which the file does not import"
                    yield KnownFault(path, uses[0].lineno, what)


def _unet(host: Host) -> Iterator[KnownFault]:
    declared = any(
        b"down_dims" in (host.read(path) or b"") for path in host.files(("config/*.py",))
    )
    for path in host.files(("algo/*.py",)) if declared else ():
        for call in _calls(_tree(host, path), "ConditionalUnet1D"):
            if len(call.args) < 4 and "down_dims" not in [word.arg for word in call.keywords]:
                what = (
                    "algo.unet.down_dims and its neighbours are in the config and never reach this "
                    "net (robomimic-ddp apply --with unet_config passes them on)"
                )
                yield KnownFault(path, call.lineno, what)


def _load_from(host: Host) -> Iterator[KnownFault]:
    for path in host.files(_SCRIPTS):
        for node in ast.walk(_tree(host, path)):
            if isinstance(node, ast.Assign) and _is_call(node.value, "create"):
                if any(_is_call(arg, "load") for arg in node.value.args):
                    what = "load_from replaces the whole configuration: key=value beside it is lost"
                    yield KnownFault(path, node.lineno, what)


def _past_the_wrapper(host: Host) -> Iterator[KnownFault]:
    for path in host.files(("algo/*.py",)):
        data = host.read(path) or b""
        for node in ast.walk(_tree(host, path) if b".module.nets" in data else ast.Module([], [])):
            if isinstance(node, ast.FunctionDef) and node.name == "train_on_batch":
                inner = [item for item in ast.walk(node) if _reads(item, "module", "nets")]
                if inner:
                    what = (
                        "the training step reaches nets inside a wrapped net: their gradients are "
                        "averaged only where the whole net runs in the same step"
                    )
                    yield KnownFault(path, inner[0].lineno, what)


def _tensorflow_first(host: Host) -> Iterator[KnownFault]:
    """The host's own modules import torchvision, and with it triton."""
    for path in host.files(_SCRIPTS):
        for node in _tree(host, path).body:
            if isinstance(node, ast.Import):
                roots = {alias.name.split(".")[0] for alias in node.names}
            else:
                roots = {(getattr(node, "module", None) or "").split(".")[0]}
            if roots & {"triton", "torchvision", "robomimic"}:
                break
            if "tensorflow" in roots:
                what = (
                    "tensorflow is imported before triton, which torchvision imports: tensorflow "
                    "2.21 beside torch 2.12 ends the process so (exit code -11). train_rlds and "
                    "robomimic-ddp run keep the order; for other starts put `import triton` above "
                    "this line, which apply leaves as it is"
                )
                yield KnownFault(path, node.lineno, what)
                break


def _resume_ignored(host: Host) -> Iterator[KnownFault]:
    """--resume is declared, and train() is given a constant for it."""
    for path in host.files(_SCRIPTS):
        tree = _tree(host, path)
        flags = (
            getattr(word, "value", "") for c in _calls(tree, "add_argument") for word in c.args
        )
        if "--resume" not in flags:
            continue
        for call in _calls(tree, "train"):
            for word in call.keywords:
                if word.arg == "resume" and isinstance(word.value, ast.Constant):
                    what = f"--resume has no effect: train() is given resume={word.value.value}"
                    yield KnownFault(path, call.lineno, f"{what} (ROBOMIMIC_DDP_RESUME=true has)")


def _reads(node: ast.AST, *names: str) -> bool:
    """Whether `node` is an attribute access that ends in `.a.b`."""
    for name in reversed(names):
        if not isinstance(node, ast.Attribute) or node.attr != name:
            return False
        node = node.value
    return True


def _tree(host: Host, path: str) -> ast.Module:
    try:
        return syntax_tree(host.read(path) or b"")
    except (SyntaxError, ValueError, RecursionError):
        return ast.Module([], [])


def _function(tree: ast.Module, name: str) -> ast.FunctionDef | None:
    """The last one at top level, as Python sees it."""
    named = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    return named[-1] if named else None


def _calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    """Calls of a function whose last name is `name`."""
    return (node for node in ast.walk(tree) if _is_call(node, name))


def _is_call(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func).split(".")[-1] == name


def _validates(call: ast.Call) -> bool:
    return any(
        word.arg == "validate" and getattr(word.value, "value", None) is True
        for word in call.keywords
    )
