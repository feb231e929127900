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


@dataclass(frozen=True)
class Settings:
    """The settings of a job. gpus: number of ranks on this node, or a selection of the visible
    devices, None for all visible ones; overrides: what the training module is given.
    """

    config: str
    gpus: int | tuple[str, ...] | None = None
    lr_scaling: str | None = None
    nodes: int = 1
    rdzv: str | None = None
    port: int | None = None
    max_restarts: int = 0
    resume: bool = False
    module: str = DOT_LIST_MODULE
    dry_run: bool = False
    overrides: tuple[str, ...] = ()

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
        metavar="|".join(_RULES),
        help="learning rate times f (linear) or sqrt(f), f = samples per step / train.batch_size; "
        "auto: by the size of the policy; default: what the config's ddp.lr_scaling says, else "
        "linear (LR_SCALING)",
    )
    add("--nodes", metavar="N", help="how many nodes; default 1. The same command on each of them")
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
    add("overrides", nargs="*", metavar="-- WORD", help="what the training module is given")


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
    settings = Settings(**{**values, "overrides": tuple(args.overrides)})
    if settings.rdzv is not None and "nodes" not in values:
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
    for word in settings.overrides if settings.takes_dot_list else ():
        if not _OVERRIDE.match(word):
            raise UsageError(
                f"after -- found {word!r}, expected key=value: {settings.module} reads nothing "
                "else, and every rank would stop. Write KEY=VALUE, put flags of launch before "
                "the --, or name an entry that takes this word with --module."
            )
    return settings


def gpus(text: str, source: str) -> int | tuple[str, ...]:
    """Return how many devices, or the numbers of which. Raises UsageError, which names `source`."""
    numbers = tuple(number.strip() for number in text.split(","))
    if not all(map(_NUMBER.fullmatch, numbers)) or len(set(numbers)) != len(numbers):
        raise UsageError(
            f"{source} {text}: expected how many (4), or which, each once (0,2,3). For the "
            "first device alone write 1, for the third alone CUDA_VISIBLE_DEVICES=2."
        )
    return int(text) if len(numbers) == 1 and int(text) else numbers


def _number(least: int, most: int = 10**6) -> Callable[[str, str], int]:
    def convert(text: str, source: str) -> int:
        if not (_NUMBER.fullmatch(text) and least <= int(text) <= most):
            raise UsageError(
                f"{source} {text}: expected a whole number of at least {least}, at most {most}."
            )
        return int(text)

    return convert


def _text(pattern: str, expected: str) -> Callable[[str, str], str]:
    def convert(text: str, source: str) -> str:
        if not re.fullmatch(pattern, text):
            raise UsageError(f"{source} {text}: expected {expected}.")
        return text

    return convert


_RULES = FIELDS["lr_scaling"].metadata["choices"]
_NUMBER = re.compile(r"\d{1,18}")
"""Python refuses to read numbers of thousands of digits."""
_OVERRIDE = re.compile(r"[^-].*=|[~=]|(-h|--help)\Z", re.DOTALL)
"""key=value, Hydra's "~key" to remove a key, or a request for help."""
_CONVERTERS: dict[str, Callable[[str, str], Any]] = {
    "gpus": gpus,
    "lr_scaling": _text("|".join(_RULES), " | ".join(_RULES)),
    "nodes": _number(1),
    "rdzv": _text(r"[\w.\-\[\]:]+:\d+", "HOST:PORT, such as node01:29400"),
    "port": _number(1, 65535),
    "max_restarts": _number(0),
    "module": _text(r"[^\W\d]\w*(\.[^\W\d]\w*)*", "a module's dotted name"),
}
