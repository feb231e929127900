"""The flags of `robomimic-ddp launch`, and the environment variables that can replace four."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

from robomimic_ddp.config.options import FIELDS
from robomimic_ddp.errors import UsageError
from robomimic_ddp.terminal import whole_number

DOT_LIST_MODULE = "robomimic.scripts.train_rlds"
_RULES = FIELDS["lr_scaling"].metadata["choices"]
_OVERRIDE = re.compile(r"[^-].*=|[~=]|(-h|--help)\Z", re.DOTALL)
"""key=value, Hydra's "~key" to remove a key, or a request for help."""


@dataclass(frozen=True)
class Settings:
    """The settings of a job. gpus: ranks on this node, None for one on each visible GPU; overrides:
    the arguments of the training module.
    """

    config: str
    gpus: int | None = None
    lr_scaling: str | None = None
    nodes: int = 1
    rdzv: str | None = None
    port: int | None = None
    max_restarts: int = 0
    resume: bool = False
    module: str = DOT_LIST_MODULE
    evaluate: bool = False
    dry_run: bool = False
    overrides: tuple[str, ...] = ()

    @property
    def takes_dot_list(self) -> bool:
        """Whether the module reads load_from= and key=value instead of --config."""
        return self.module.rpartition(".")[2] == "train_rlds"


def _matching(pattern: str, expected: str) -> Callable[[str], str]:
    def convert(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"{text}: expected {expected}")
        return text

    return convert


def _address(text: str) -> str:
    """Return HOST:PORT. With port 0 each node would wait for the others at another one."""
    host, _, port = text.rpartition(":")
    if not re.fullmatch(r"[\w.\-\[\]:]+", host):
        raise argparse.ArgumentTypeError(f"{text}: expected HOST:PORT, such as node01:29400")
    _port(port)
    return text


_lr_scaling = _matching("|".join(_RULES), " | ".join(_RULES))
_gpus, _port = whole_number(1), whole_number(1, 65535)
VARIABLES = {
    "CONFIG_PATH": ("config", str),
    "NUM_GPUS": ("gpus", _gpus),
    "LR_SCALING": ("lr_scaling", _lr_scaling),
    "MASTER_PORT": ("port", _port),
}


def add_to(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.epilog = (
        "Arguments after -- go to the training module: -- train.batch_size=128 ddp.batch=global "
        "(key=value for train_rlds; flags for other modules). In parentheses: the environment "
        "variable that sets the same; the flag takes precedence."
    )
    add = parser.add_argument
    add("--config", metavar="FILE", help="the host's JSON config (CONFIG_PATH)")
    add(
        "--gpus",
        type=_gpus,
        metavar="N",
        help="GPUs of this node to use; default: all that CUDA_VISIBLE_DEVICES shows. Without a "
        "GPU: ranks on the CPU (NUM_GPUS)",
    )
    add(
        "--lr-scaling",
        type=_lr_scaling,
        metavar="|".join(_RULES),
        help="multiply the learning rate by f (linear) or sqrt(f), f = samples per step / "
        "train.batch_size; auto: by the size of the policy; default: ddp.lr_scaling of the config, "
        "else linear (LR_SCALING)",
    )
    what = "number of nodes, default 1; start the same command on each of them"
    add("--nodes", type=whole_number(1), metavar="N", help=what)
    add(
        "--rdzv",
        type=_address,
        metavar="HOST:PORT",
        help="where the nodes meet: a port of the first node that all nodes can reach",
    )
    what = "port of a job on a single node; default: a free one (MASTER_PORT)"
    add("--port", type=_port, metavar="PORT", help=what)
    add(
        "--max-restarts",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="how many times torchrun restarts the ranks after a failure; default %(default)s",
    )
    add("--resume", action="store_true", help="resume the newest run of the config's experiment")
    add(
        "--module",
        type=_matching(r"[^\W\d]\w*(\.[^\W\d]\w*)*", "a module's dotted name"),
        default=DOT_LIST_MODULE,
        metavar="NAME",
        help="the training module; one whose name does not end in train_rlds gets --config FILE; "
        "default %(default)s",
    )
    what = "run rollouts outside the training, on GPUs and cores that the training leaves free"
    add("--evaluate", action="store_true", help=what)
    add("--dry-run", action="store_true", help="print the ranks and the command, start nothing")
    add("overrides", nargs="*", metavar="-- WORD", help="arguments of the training module")


def settings_of(args: argparse.Namespace, variables: Mapping[str, str]) -> Settings:
    """Return the settings of a command line in the environment `variables`.

    Raises UsageError for settings that contradict each other, and for an invalid variable.
    """
    values = {field.name: getattr(args, field.name) for field in fields(Settings)}
    for variable, (name, convert) in VARIABLES.items():
        if values[name] is None and variables.get(variable):
            try:
                values[name] = convert(variables[variable])
            except argparse.ArgumentTypeError as error:
                raise UsageError(f"{variable}={error}.") from None
    if values["config"] is None:
        file = next((word for word in args.overrides if word.endswith(".json")), None)
        remedy = "give --config FILE or set CONFIG_PATH"
        if file is not None:
            remedy = f"found the word {file!r}, write --config {file}"
        raise UsageError(f"no config: {remedy}.")
    values |= {"nodes": args.nodes or 1, "overrides": tuple(args.overrides)}
    settings = Settings(**values)
    if args.lr_scaling and settings.takes_dot_list:
        # Said on the command line, so that it also scales a learning rate that is given there.
        rule = f"ddp.lr_scaling={args.lr_scaling}"
        settings = replace(settings, lr_scaling=None, overrides=(rule, *settings.overrides))
    has_rdzv = settings.rdzv is not None
    if (has_rdzv and args.nodes is None) or (settings.nodes > 1 and not has_rdzv):
        raise UsageError(
            f"{'--rdzv without --nodes' if has_rdzv else '--nodes without --rdzv'}: every node "
            "would train alone. Give both, with the same values on every node: --nodes N and "
            "--rdzv HOST:PORT, the first node's name and a port that all nodes can reach. For one "
            "node give neither (its port is --port)."
        )
    for word in settings.overrides if settings.takes_dot_list else ():
        if word.startswith("load_from="):
            raise UsageError(
                f"after -- found {word!r}: the ranks would read that file, and launch --config "
                f"{settings.config}. Give one config, with --config."
            )
        if not _OVERRIDE.match(word):
            raise UsageError(
                f"after -- found {word!r}, expected key=value: {settings.module} reads nothing "
                "else, and every rank would stop. Write KEY=VALUE, put flags of launch before "
                "the --, or name a module that accepts this word with --module."
            )
    return settings
