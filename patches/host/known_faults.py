"""Faults of hosts' own that the retrofit would be blamed for: `status` names them.

Each is recognised by the code that fails, not by the repository it is in.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from robomimic_ddp.patches.host.hosts import Host
from robomimic_ddp.patches.syntax.python import aliases, dotted, last_name, parsed

_TRAIN_UTILS = "utils/train_utils.py"
_SCRIPTS = "scripts/train*.py"


@dataclass(frozen=True, order=True)
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
        *(_validation_path, _number_of_steps, _validation_log, _unbound_numpy, _unet),
        *(_load_from, _past_the_wrapper, _tensorflow_first, _resume_ignored),
        *(_prior_samples, _random_subgoals),
    )
    return sorted({fault for find in finders for fault in find(host)})


def _validation_path(host: Host) -> Iterator[KnownFault]:
    tree = parsed(host.read(_TRAIN_UTILS))
    lists = {dotted(node.iter) for node in ast.walk(tree) if isinstance(node, ast.comprehension)}
    for call in _calls(tree, "expanduser"):
        if call.args and dotted(call.args[0]) in lists & {"config.train.data"}:
            what = "experiment.validate=true fails here: train.data is a list, read as one path"
            yield KnownFault(_TRAIN_UTILS, call.lineno, what)
            return


def _number_of_steps(host: Host) -> Iterator[KnownFault]:
    function = _run_epoch(host)
    if "num_steps" not in [arg.arg for arg in function.args.args]:
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
    returns = [node for node in ast.walk(_run_epoch(host)) if isinstance(node, ast.Return)]
    if not returns or not all(isinstance(node.value, ast.Tuple) for node in returns):
        return
    for path, node in _nodes(host, _SCRIPTS, ast.Assign):
        is_name = isinstance(node.targets[0], ast.Name)
        if is_name and last_name(node.value) == "run_epoch" and _validates(node.value):
            what = "experiment.validate=true fails here: run_epoch returns (log, iterator)"
            yield KnownFault(path, node.lineno, what)


def _unbound_numpy(host: Host) -> Iterator[KnownFault]:
    for path, tree in _trees(host, "utils/*rlds*.py"):
        if "np" in aliases(tree, "robomimic.utils"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                uses = [item for item in ast.walk(node) if dotted(item) == "np"]
                if uses:
                    what = f"{node.name} uses np, which the file does not import"
                    yield KnownFault(path, uses[0].lineno, what)


def _unet(host: Host) -> Iterator[KnownFault]:
    configs = host.files(("config/*.py",))
    declared = any(b"down_dims" in (host.read(path) or b"") for path in configs)
    for path, call in _nodes(host, "algo/*.py", ast.Call) if declared else ():
        is_unet = last_name(call) == "ConditionalUnet1D" and len(call.args) < 4
        if is_unet and "down_dims" not in [word.arg for word in call.keywords]:
            what = (
                "algo.unet.down_dims and its neighbours are in the config and never reach this net "
                "(robomimic-ddp apply --with unet_config passes them on)"
            )
            yield KnownFault(path, call.lineno, what)


def _load_from(host: Host) -> Iterator[KnownFault]:
    for path, node in _nodes(host, _SCRIPTS, ast.Assign):
        if last_name(node.value) == "create":
            if any(last_name(arg) == "load" for arg in node.value.args):
                what = "load_from replaces the whole configuration: key=value beside it is lost"
                yield KnownFault(path, node.lineno, what)


def _past_the_wrapper(host: Host) -> Iterator[KnownFault]:
    for path, node in _nodes(host, "algo/*.py", ast.FunctionDef, b".module.nets"):
        inner = [item for item in ast.walk(node) if _is_module_nets(item)]
        if node.name == "train_on_batch" and inner:
            what = (
                "the training step reaches nets inside a wrapped net: their gradients are averaged "
                "only where the whole net runs in the same step"
            )
            yield KnownFault(path, inner[0].lineno, what)


def _tensorflow_first(host: Host) -> Iterator[KnownFault]:
    """The host's own modules import torchvision, and with it triton."""
    for path, tree in _trees(host, _SCRIPTS):
        for node in tree.body:
            modules = [getattr(node, "module", None) or ""]
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            roots = {module.split(".")[0] for module in modules}
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
    for path, tree in _trees(host, _SCRIPTS):
        declared = (word for call in _calls(tree, "add_argument") for word in call.args)
        if "--resume" not in [getattr(word, "value", "") for word in declared]:
            continue
        for call in _calls(tree, "train"):
            for word in call.keywords:
                if word.arg == "resume" and isinstance(word.value, ast.Constant):
                    what = f"--resume has no effect: train() is given resume={word.value.value}"
                    yield KnownFault(path, call.lineno, f"{what} (ROBOMIMIC_DDP_RESUME=true has)")


def _prior_samples(host: Host) -> Iterator[KnownFault]:
    """GL_VAE, HBC's planner, does not tell the VAE how many samples of its prior it wants."""
    nets = ast.walk(parsed(host.read("models/vae_nets.py")))
    taken = [node.args for node in nets if getattr(node, "name", "") == "sample_prior"]
    required = [args.args[: len(args.args) - len(args.defaults)] for args in taken]
    if "n" not in [arg.arg for args in required for arg in args]:
        return
    fails = {
        "prior_correction": "algo.latent_subgoal.prior_correction.enabled=true fails here in HBC",
        "latent_subgoal.enabled": "algo.latent_subgoal.enabled=true: HBC fails here when it acts "
        "(rollouts, and training with algo.mode=cascade)",
    }
    for path, block in _nodes(host, "algo/*.py", ast.If, b"sample_prior"):
        what = next((text for end, text in fails.items() if dotted(block.test).endswith(end)), None)
        for call in ast.walk(ast.Module(block.body, [])) if what else ():
            if getattr(getattr(call, "func", None), "attr", "") == "sample_prior":
                if not call.args and {word.arg for word in call.keywords}.isdisjoint({"n", None}):
                    yield KnownFault(path, call.lineno, f"{what}: sample_prior() needs n")


def _random_subgoals(host: Host) -> Iterator[KnownFault]:
    for path, block in _nodes(host, "algo/*.py", ast.If, b"actor_use_random_subgoals"):
        if not dotted(block.test).endswith("actor_use_random_subgoals"):
            continue
        body = ast.Module(block.body, [])
        assigned = (node for node in ast.walk(body) if isinstance(node, ast.Assign))
        found = {
            dotted(node.targets[0])
            for node in assigned
            if last_name(node.value) == "gather_sequence"
        }
        for call in _calls(body, "get_actor_goal_for_training_from_processed_batch"):
            if call.args and dotted(call.args[0]) in found:
                what = (
                    "algo.actor_use_random_subgoals=true fails here in HBC: the planner is given "
                    "observations, not a processed batch (KeyError: 'target_subgoals')"
                )
                yield KnownFault(path, call.lineno, what)


def _trees(host: Host, pattern: str, word: bytes = b"") -> Iterator[tuple[str, ast.Module]]:
    """Path and tree of each file that contains `word`."""
    for path in host.files((pattern,)):
        data = host.read(path) or b""
        if word in data:
            yield path, parsed(data)


def _nodes(host: Host, pattern: str, kind: type, word: bytes = b"") -> Iterator[tuple[str, Any]]:
    """Path and node of each `kind` in the files."""
    for path, tree in _trees(host, pattern, word):
        yield from ((path, node) for node in ast.walk(tree) if isinstance(node, kind))


def _run_epoch(host: Host) -> ast.FunctionDef:
    """The last one at top level, as Python sees it; an empty one where there is none."""
    nodes = parsed(host.read(_TRAIN_UTILS)).body
    functions = [node for node in nodes if getattr(node, "name", "") == "run_epoch"]
    functions = [node for node in functions if isinstance(node, ast.FunctionDef)]
    return functions[-1] if functions else ast.parse("def run_epoch(): pass").body[0]


def _is_module_nets(node: ast.AST) -> bool:
    """Whether `node` is `<anything>.module.nets`."""
    inner = node.value if isinstance(node, ast.Attribute) and node.attr == "nets" else None
    return isinstance(inner, ast.Attribute) and inner.attr == "module"


def _calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    """Calls of a function whose last name is `name`."""
    return (node for node in ast.walk(tree) if last_name(node) == name)


def _validates(call: ast.Call) -> bool:
    values = [word.value for word in call.keywords if word.arg == "validate"]
    return any(getattr(value, "value", None) is True for value in values)
