"""The flags of `robomimic-ddp launch`, and the four variables that may stand for them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from robomimic_ddp.config.options import FIELDS
from robomimic_ddp.errors import UsageError

DOT_LIST_MODULE = "robomimic.scripts.train_rlds"
VARIABLES = {
    "config": "CONFIG_PATH",
    "gpus": "NUM_GPUS",
    "lr_scaling": "LR_SCALING",
    "port": "MASTER_PORT",
}
_MOST_DIGITS = 18
"""Python refuses to read numbers of thousands of digits."""


@dataclass(frozen=True)
class Settings:
    """The settings of a job. gpus: number of ranks on this node, or a selection of the visible
    devices, None for all visible ones; words: what the training module is given.
    """

    config: str
    gpus: int | tuple[str, ...] | None = None
    lr_scaling: str | None = None
    nodes: int = 1
    node_rank: int | None = None
    rdzv: str | None = None
    port: int | None = None
    max_restarts: int = 0
    resume: bool = False
    module: str = DOT_LIST_MODULE
    dry_run: bool = False
    words: tuple[str, ...] = ()

    @property
    def takes_dot_list(self) -> bool:
        """Whether the module takes load_from= and key=value, not --config."""
        return self.module.rpartition(".")[2] == "train_rlds"


def add_to(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    parser.epilog = (
        "What follows -- goes to the training module: -- train.batch_size=128 ddp.batch=global "
        "(key=value for train_rlds; or the flags of another module). A flag wins over its variable."
    )
    add = parser.add_argument
    add("--config", metavar="FILE", help="the host's JSON config (CONFIG_PATH)")
    add(
        "--gpus",
        metavar="N|I,J,...",
        help="how many GPUs of this node, or which of the visible ones; default: all visible "
        "ones. Without a GPU: how many ranks on the CPU (NUM_GPUS)",
    )
    add(
        "--lr-scaling",
        metavar="|".join(FIELDS["lr_scaling"].metadata["choices"]),
        help="learning rate times f (linear) or sqrt(f), f = samples per step / train.batch_size; "
        "auto: by the size of the policy; default: what the config's ddp.lr_scaling says, else "
        "linear (LR_SCALING)",
    )
    add("--nodes", metavar="N", help="how many nodes; default 1")
    add(
        "--node-rank",
        metavar="I",
        help="handed to torchrun, whose c10d rendezvous numbers nodes by their names",
    )
    add(
        "--rdzv",
        metavar="HOST:PORT",
        help="where the nodes meet: a port of the first node that all can reach",
    )
    add(
        "--port",
        metavar="PORT",
        help="the port of a single node; default: a free one (MASTER_PORT)",
    )
    add(
        "--max-restarts",
        metavar="N",
        help="how often torchrun restarts the ranks after a failure; they resume where they "
        "were; default 0",
    )
    add("--resume", action="store_true", help="resume the newest run of the config's experiment")
    add("--module", metavar="NAME", help=f"what to train with; default {DOT_LIST_MODULE}")
    add("--dry-run", action="store_true", help="print the ranks and the command, start nothing")
    add("words", nargs="*", metavar="-- WORD", help="what the training module is given")


def settings_of(args: argparse.Namespace, variables: Mapping[str, str]) -> Settings:
    """Return the settings of a command line in the environment `variables`.

    Raises UsageError, which names the flag or variable, for invalid values.
    """
    values: dict[str, Any] = {}
    for name in (field.name for field in fields(Settings)):
        value, source = getattr(args, name), f"--{name.replace('_', '-')}"
        if value is None and variables.get(VARIABLES.get(name, "")):
            source = VARIABLES[name]
            value = variables[source]
        if value is not None:
            values[name] = _CONVERTERS[name](value, source) if name in _CONVERTERS else value
    if "config" not in values:
        raise UsageError("no config: give --config FILE or set CONFIG_PATH.")
    settings = Settings(**{**values, "words": tuple(args.words)})
    _require_consistent(settings, "nodes" in values)
    return settings


def _require_consistent(settings: Settings, has_nodes: bool) -> None:
    if settings.rdzv is not None and not has_nodes:
        raise UsageError(
            f"--rdzv {settings.rdzv} without --nodes: expected the number of nodes that meet "
            "there, since every node would train alone. Give --nodes N, alike on every node; for "
            "one node leave --rdzv out (its port is --port)."
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
    for word in settings.words if settings.takes_dot_list else ():
        if not _is_setting(word):
            raise UsageError(
                f"after -- found {word!r}, expected key=value: {settings.module} reads nothing "
                "else, and every rank would stop. Write KEY=VALUE, put flags of launch before "
                "the --, or name an entry that takes this word with --module."
            )


def _is_setting(word: str) -> bool:
    """Return whether it is key=value, Hydra's "~key" to remove a key, or a request for help."""
    return ("=" in word and not word.startswith("-")) or (
        word.startswith("~") or word in ("-h", "--help")
    )


def gpus(text: str, source: str) -> int | tuple[str, ...]:
    """Return how many devices, or the numbers of which. Raises UsageError, which names `source`."""
    if _is_number(text) and int(text):
        return int(text)
    numbers = tuple(number.strip() for number in text.split(","))
    if not all(map(_is_number, numbers)) or len(set(numbers)) != len(numbers):
        raise UsageError(
            f"{source} {text}: expected how many (4), or which, each once (0,2,3). For the "
            "first device alone write 1, for the third alone CUDA_VISIBLE_DEVICES=2."
        )
    return numbers


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def _number(least: int, most: int = 10**6) -> Callable[[str, str], int]:
    def convert(text: str, source: str) -> int:
        if not (_is_number(text) and least <= int(text) <= most):
            raise UsageError(
                f"{source} {text}: expected a whole number of at least {least}, at most {most}."
            )
        return int(text)

    return convert


def _endpoint(text: str, source: str) -> str:
    host, _, port = text.rpartition(":")
    if not (host and re.fullmatch(r"[\w.\-\[\]:]+", host) and port.isdecimal()):
        raise UsageError(f"{source} {text}: expected HOST:PORT, such as node01:29400.")
    return text


def _module(text: str, source: str) -> str:
    if not all(name.isidentifier() for name in text.split(".")):
        raise UsageError(f"{source} {text}: expected a module's dotted name.")
    return text


def _lr_scaling(text: str, source: str) -> str:
    choices = FIELDS["lr_scaling"].metadata["choices"]
    if text not in choices:
        raise UsageError(f"{source} {text}: expected {' | '.join(choices)}.")
    return text


_CONVERTERS: dict[str, Callable[[str, str], Any]] = {
    "gpus": gpus,
    "lr_scaling": _lr_scaling,
    "nodes": _number(1),
    "node_rank": _number(0),
    "rdzv": _endpoint,
    "port": _number(1, 65535),
    "max_restarts": _number(0),
    "module": _module,
}
