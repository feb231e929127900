"""Flags of `robomimic-ddp launch` and scripts/train_multi_gpu.sh.

Each can also be an environment variable; flags win.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from robomimic_ddp.config.options import FIELDS
from robomimic_ddp.errors import UsageError
from robomimic_ddp.terminal import Parser

SCRIPT = "train_multi_gpu.sh"
DOT_LIST_MODULE = "robomimic.scripts.train_rlds"
VARIABLES = {
    "config": ("CONFIG_PATH",),
    "gpus": ("NUM_GPUS", "GPUS"),
    "lr_scaling": ("LR_SCALING",),
    "batch": ("BATCH",),
    "nodes": ("NUM_NODES", "NNODES"),
    "node_rank": ("NODE_RANK",),
    "rdzv": ("RDZV",),
    "port": ("MASTER_PORT",),
    "max_restarts": ("MAX_RESTARTS",),
    "resume": ("RESUME",),
    "module": ("MODULE",),
    "dry_run": ("DRY_RUN",),
}
"""Flag -> its variables; the first one set wins."""
_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


@dataclass(frozen=True)
class Settings:
    """The settings of a job. given: flags and variables set by the user; gpus: number of ranks on
    this node, or a selection of the visible devices; None: all visible ones.
    """

    config: str
    gpus: int | tuple[str, ...] | None = None
    lr_scaling: str = "linear"
    batch: str = "per_rank"
    nodes: int = 1
    node_rank: int | None = None
    rdzv: str | None = None
    port: int | None = None
    max_restarts: int = 0
    resume: bool = False
    module: str = DOT_LIST_MODULE
    dry_run: bool = False
    print_runs: bool = False
    overrides: tuple[str, ...] = ()
    given: Mapping[str, str] = field(default_factory=dict)

    @property
    def takes_dot_list(self) -> bool:
        """Whether the module takes load_from= and key=value, not --config."""
        return self.module.rpartition(".")[2] == "train_rlds"


class _Parser(Parser):
    def error(self, message: str) -> Any:
        raise UsageError(f"{message}. See {self.prog} --help.")


def parser(prog: str = SCRIPT) -> argparse.ArgumentParser:
    """The flags. prog: the command that was typed, for messages."""
    names = {flag: " or ".join(variables) for flag, variables in VARIABLES.items()}
    made = _Parser(
        prog=prog,
        description="Trains on several GPUs: wraps torchrun, scales the learning rate, and prints "
        "what it does. Every flag can be an environment variable; the flag wins.",
        epilog="Everything after -- goes to the training module: -- train.batch_size=128 "
        "experiment.name=run1 (key=value for train_rlds; or the flags of another module).",
        allow_abbrev=False,
    )
    add = made.add_argument
    add("--config", metavar="FILE", help=f"the host's JSON config ({names['config']})")
    add(
        "--gpus",
        metavar="N|I,J,...",
        help="how many GPUs of this node, or which of the visible ones; default: all visible "
        f"ones. Without a GPU: how many ranks on the CPU ({names['gpus']})",
    )
    add(
        "--lr-scaling",
        choices=FIELDS["lr_scaling"].metadata["choices"],
        help="learning rate times f (linear) or sqrt(f), f = samples per step / train.batch_size; "
        "auto: by the size of the policy; default: what the config's ddp.lr_scaling says, else "
        f"linear ({names['lr_scaling']})",
    )
    add(
        "--batch",
        choices=("per-rank", "global"),
        help="whether train.batch_size is for each rank (default) or for all ranks together "
        f"({names['batch']})",
    )
    add("--nodes", metavar="N", help=f"how many nodes; default 1 ({names['nodes']})")
    which = "handed to torchrun, whose c10d rendezvous numbers nodes by their names"
    add("--node-rank", metavar="I", help=f"{which} ({names['node_rank']})")
    add(
        "--rdzv",
        metavar="HOST:PORT",
        help="where the nodes meet: a port of the first node that all can reach "
        f"({names['rdzv']}, or MASTER_ADDR and MASTER_PORT)",
    )
    add(
        "--port",
        metavar="PORT",
        help=f"the port of a single node; default: a free one ({names['port']})",
    )
    add(
        "--max-restarts",
        metavar="N",
        help="how often torchrun restarts the ranks after a failure; they resume where they "
        f"were; default 0 ({names['max_restarts']})",
    )
    add(
        "--resume",
        action="store_true",
        default=None,
        help=f"resume the newest run of the config's experiment name ({names['resume']})",
    )
    add(
        "--module",
        metavar="NAME",
        help=f"what to train with; default {DOT_LIST_MODULE} ({names['module']})",
    )
    add(
        "--dry-run",
        action="store_true",
        default=None,
        help=f"print the command, samples per step and learning rate only ({names['dry_run']})",
    )
    add("--print-runs", action="store_true", default=None, help=argparse.SUPPRESS)
    return made


def parse(argv: Sequence[str], variables: Mapping[str, str], prog: str = SCRIPT) -> Settings:
    """Settings from the command line `argv` of `prog` and the environment `variables`.

    Raises UsageError, which names the flag or variable, for invalid values.
    """
    argv = list(argv)
    cut = argv.index("--") if "--" in argv else len(argv)
    flags = vars(parser(prog).parse_args(argv[:cut]))
    values = {name: value for name, value in flags.items() if value is not None}
    given = {name: f"--{name.replace('_', '-')}" for name in values}
    for name, candidates in VARIABLES.items():
        for variable in candidates:
            if name not in values and variables.get(variable):
                values[name], given[name] = variables[variable], variable
    if "nodes" in values and "rdzv" not in values and variables.get("MASTER_ADDR"):
        port = variables.get("MASTER_PORT", "29400")
        values["rdzv"], given["rdzv"] = f"{variables['MASTER_ADDR']}:{port}", "MASTER_ADDR"
    if "config" not in values:
        raise UsageError("no config: give --config FILE or set CONFIG_PATH. See --help.")
    for name, convert in _CONVERTERS.items():
        if name in values:
            values[name] = convert(values[name], given[name])
    return _consistent(Settings(**values, overrides=tuple(argv[cut + 1 :]), given=given))


def _consistent(settings: Settings) -> Settings:
    if "rdzv" in settings.given and "nodes" not in settings.given:
        spelled = settings.given["rdzv"]
        raise UsageError(
            f"{spelled} {settings.rdzv} without --nodes: expected the number of nodes that meet "
            "there, since every node would train alone. Give --nodes N, alike on every node; for "
            f"one node leave {spelled} out (its port is --port)."
        )
    if settings.nodes > 1 and settings.rdzv is None:
        raise UsageError(
            f"--nodes {settings.nodes} without --rdzv: the nodes could not find each other. Give "
            "--rdzv HOST:PORT, the first node's name and a port that all nodes can reach, alike "
            "on every node."
        )
    if settings.node_rank is not None and settings.node_rank >= settings.nodes:
        raise UsageError(
            f"--node-rank {settings.node_rank} of --nodes {settings.nodes}: expected 0 to "
            f"{settings.nodes - 1}."
        )
    for word in settings.overrides if settings.takes_dot_list else ():
        if not _is_setting(word):
            raise UsageError(
                f"after -- found {word!r}, expected key=value: {settings.module} reads nothing "
                "else, and every rank would stop. Write KEY=VALUE, put flags of this script before "
                "the --, or name an entry that takes this word with --module."
            )
    return settings


def _is_setting(word: str) -> bool:
    """Whether it is key=value, Hydra's "~key" to remove a key, or a request for help."""
    return ("=" in word and not word.startswith("-")) or (
        word.startswith("~") or word in ("-h", "--help")
    )


def _number(least: int, most: int = 10**6) -> Any:
    def convert(text: Any, spelled: str) -> int:
        if not (str(text).isdecimal() and least <= int(text) <= most):
            raise UsageError(
                f"{spelled} {text}: expected a whole number of at least {least}, at most {most}."
            )
        return int(text)

    return convert


def _flag(value: Any, spelled: str) -> bool:
    text = str(value).strip().lower()
    if text not in _YES + _NO:
        raise UsageError(f"{spelled}={value}: expected 1 or 0.")
    return text in _YES


def gpus(text: str, spelled: str) -> int | tuple[str, ...]:
    """--gpus: how many devices, or the numbers of which. Raises UsageError, naming it `spelled`."""
    if text.isdecimal() and int(text):
        return int(text)
    parts = tuple(part.strip() for part in text.split(","))
    if not all(part.isdecimal() for part in parts) or len(set(parts)) != len(parts):
        raise UsageError(
            f"{spelled} {text}: expected how many (4), or which, each once (0,2,3). For the "
            "first device alone write 1, for the third alone CUDA_VISIBLE_DEVICES=2."
        )
    return parts


def _endpoint(text: str, spelled: str) -> str:
    host, _, port = text.rpartition(":")
    if not (host and re.fullmatch(r"[\w.\-\[\]:]+", host) and port.isdecimal()):
        raise UsageError(f"{spelled} {text}: expected HOST:PORT, such as node01:29400.")
    return text


def _module(text: str, spelled: str) -> str:
    if not all(part.isidentifier() for part in text.split(".")):
        raise UsageError(f"{spelled} {text}: expected a module's dotted name.")
    return text


def _choice(option: str) -> Any:
    choices = FIELDS[option].metadata["choices"]

    def convert(text: str, spelled: str) -> str:
        value = text.strip().lower().replace("-", "_")
        if value not in choices:
            raise UsageError(f"{spelled} {text}: expected {' | '.join(choices)}.")
        return value

    return convert


_CONVERTERS = {
    "gpus": gpus,
    "lr_scaling": _choice("lr_scaling"),
    "batch": _choice("batch"),
    "nodes": _number(1),
    "node_rank": _number(0),
    "rdzv": _endpoint,
    "port": _number(1, 65535),
    "max_restarts": _number(0),
    "resume": _flag,
    "dry_run": _flag,
    "module": _module,
}
