"""The launcher's environment variables and our options, as one frozen value.

torchrun exports RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT
(https://docs.pytorch.org/docs/stable/elastic/run.html). Options are read from ROBOMIMIC_DDP_<NAME>.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from robomimic_ddp.config import env
from robomimic_ddp.errors import LaunchError

OPTION_PREFIX = "ROBOMIMIC_DDP_"
_LAUNCH_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
_RANK_NAMES = {*_LAUNCH_NAMES, "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE"}
_LAST_PORT = 65535
_TORCHRUN_DEFAULTS = frozenset(
    f"PET_{name}"
    for name in (
        *("NNODES", "NPROC_PER_NODE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT"),
        *("RDZV_BACKEND", "RDZV_ENDPOINT", "STANDALONE", "MAX_RESTARTS"),
    )
)
"""What torchrun reads where a flag is left out: which ranks there are, and where nodes meet."""


@dataclass(frozen=True)
class LaunchEnv:
    """The launcher's and our environment variables.

    launched: whether a launcher exported RANK, WORLD_SIZE and LOCAL_RANK; if not, the process is
    rank 0 of 1. tells_node: whether it exported LOCAL_WORLD_SIZE; if not, the ranks of this node
    must be counted, and `local_world_size` is a lower bound. error_file: where torchrun reads why a
    rank failed; shown_by_launcher: whether torchrun prints it, since no restart is left. nodes: how
    many there are, where torchrun says it. run_id, restart_count: torchrun's job id and number of
    restarts, which nodes count separately: a node that replaces another has 0; run_id is Slurm's
    without torchrun. requeued: whether Slurm has started the job before. keeps_store: whether the
    launcher has the key-value store, and not rank 0. option_texts: option names in lower case ->
    unparsed text of ROBOMIMIC_DDP_<NAME>. SLURM_* alone is not a launcher: interactive shells of a
    cluster export them too.
    """

    launched: bool = False
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    tells_node: bool = True
    restart_count: int = 0
    keeps_store: bool = False
    elastic: bool = False
    error_file: str | None = None
    shown_by_launcher: bool = False
    run_id: str | None = None
    requeued: bool = False
    nodes: int | None = None
    cuda_visible_devices: str | None = None
    option_texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def attempt(self) -> int:
        """`restart_count` where ranks that are started again meet in the same store; 0 where they
        have a new one.
        """
        return self.restart_count if self.keeps_store else 0


def without_rank(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those that make a process a rank of a launcher's job, and
    without those of `torchrun_defaults`, for a program or a torchrun of a separate job.
    """
    names = _RANK_NAMES | {"MASTER_ADDR", "MASTER_PORT"} | _TORCHRUN_DEFAULTS
    return {name: text for name, text in environ.items() if name not in names}


def torchrun_defaults(environ: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that torchrun takes for flags of `launch`, such as those
    of a Kubeflow pod, in which a job of one node would wait for the others.
    """
    return sorted(_TORCHRUN_DEFAULTS & environ.keys())


def read_launch_env(environ: Mapping[str, str] | None = None) -> LaunchEnv:
    """Reads `environ` (default: this process's).

    Raises LaunchError if the launcher's variables are incomplete, not numbers, or contradictory.
    """
    environ = env.variables() if environ is None else environ
    common = dict(
        option_texts=option_texts(environ), cuda_visible_devices=environ.get("CUDA_VISIBLE_DEVICES")
    )
    present = [name for name in _LAUNCH_NAMES if name in environ]
    if not present:
        return LaunchEnv(**common)
    missing = [name for name in _LAUNCH_NAMES if name not in environ]
    if missing:
        raise LaunchError(
            f"the environment sets {' and '.join(present)} but not {' and '.join(missing)}: ranks "
            "could not find each other, or would all take the same number. Start the ranks "
            f"with torchrun, which sets all of {', '.join(_LAUNCH_NAMES)}; for one process, unset "
            f"{' and '.join(present)}."
        )
    rank, world_size, local_rank = (_integer(environ, name) for name in _LAUNCH_NAMES)
    least = max(1, min(local_rank + 1, world_size))
    local_world_size = _integer(environ, "LOCAL_WORLD_SIZE", default=least)
    _check_ranges(rank, world_size, local_rank, local_world_size)
    _check_rendezvous(environ, world_size)
    return LaunchEnv(
        launched=True,
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        tells_node="LOCAL_WORLD_SIZE" in environ,
        restart_count=_integer(environ, "TORCHELASTIC_RESTART_COUNT", default=0),
        keeps_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        elastic="TORCHELASTIC_RUN_ID" in environ,
        error_file=environ.get("TORCHELASTIC_ERROR_FILE") or None,
        shown_by_launcher=_is_last_attempt(environ),
        run_id=environ.get("TORCHELASTIC_RUN_ID", environ.get("SLURM_JOB_ID")),
        requeued=_integer(environ, "SLURM_RESTART_COUNT", default=0) > 0,
        nodes=_integer(environ, "GROUP_WORLD_SIZE", default=0) or None,
        **common,
    )


def task_of_job(launch: LaunchEnv, environ: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Return (number, count) of this process among those of a job that exchange nothing: the ranks
    of all tasks of a Slurm array, from 0. Raises LaunchError for an array with gaps.
    """
    environ = env.variables() if environ is None else environ
    if "SLURM_ARRAY_TASK_ID" not in environ:
        return launch.rank, launch.world_size
    names = ("ID", "MIN", "STEP", "COUNT")
    task, first, step, count = (
        _integer(environ, f"SLURM_ARRAY_TASK_{name}", default=1) for name in names
    )
    number = (task - first) // max(1, step)
    if not 0 <= number < count:
        raise LaunchError(
            f"SLURM_ARRAY_TASK_ID={task} does not fit an array of {count} tasks from {first} on: "
            "a task takes its share of the files by its number, so the array must have every "
            "number. Submit it as 0 to N-1; finished files are not written again."
        )
    return number * launch.world_size + launch.rank, count * launch.world_size


def _is_last_attempt(environ: Mapping[str, str]) -> bool:
    left = (environ.get(f"TORCHELASTIC_{name}", "") for name in ("RESTART_COUNT", "MAX_RESTARTS"))
    return bool(environ.get("TORCHELASTIC_ERROR_FILE")) and len(set(left)) == 1


def option_texts(environ: Mapping[str, str]) -> dict[str, str]:
    """Option names in lower case -> the unparsed text of ROBOMIMIC_DDP_<NAME>."""
    return {
        name[len(OPTION_PREFIX) :].lower(): value
        for name, value in environ.items()
        if name.startswith(OPTION_PREFIX)
    }


def _integer(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text)
    except (TypeError, ValueError):
        raise LaunchError(
            f"{name}={text!r} is not a whole number. torchrun sets it; unset it or start the ranks "
            "with torchrun."
        ) from None


def _check_ranges(rank: int, world_size: int, local_rank: int, local_world_size: int) -> None:
    if world_size < 1:
        raise LaunchError(
            f"WORLD_SIZE={world_size} is not a number of ranks; it must be 1 or more."
        )
    if not 1 <= local_world_size <= world_size:
        raise LaunchError(
            f"LOCAL_WORLD_SIZE={local_world_size} does not fit WORLD_SIZE={world_size}: a node "
            f"runs 1 to {world_size} of its ranks. A stale variable of another job may be set; "
            "unset both and start the ranks with torchrun."
        )
    for name, value, limit_name, limit in (
        ("RANK", rank, "WORLD_SIZE", world_size),
        ("LOCAL_RANK", local_rank, "LOCAL_WORLD_SIZE", local_world_size),
    ):
        if not 0 <= value < limit:
            raise LaunchError(
                f"{name}={value} does not fit {limit_name}={limit}: expected 0 to {limit - 1}. A "
                f"stale variable of another job may be set; unset {name} and {limit_name} and "
                "start the ranks with torchrun."
            )


def _check_rendezvous(environ: Mapping[str, str], world_size: int) -> None:
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]
    if world_size > 1 and missing:
        verb = "are" if len(missing) > 1 else "is"
        raise LaunchError(
            f"WORLD_SIZE={world_size} but {' and '.join(missing)} {verb} not set, so the ranks "
            "cannot meet. torchrun sets both; with another launcher, export the address and a free "
            "port of the main node."
        )
    port = environ.get("MASTER_PORT", "1")
    if world_size > 1 and not (port.isdecimal() and 1 <= int(port) <= _LAST_PORT):
        raise LaunchError(
            f"MASTER_PORT={port!r} is not a port: expected 1 to {_LAST_PORT}, the same one on "
            "every rank and free on the main node. torchrun chooses one by itself."
        )


def require_all_nodes(launch: LaunchEnv) -> None:
    """Raise LaunchError if torchrun has started fewer nodes than its command line asks for: it
    counts out a node whose clock is behind, even after all nodes have met.
    """
    least = _least_nodes()
    if launch.elastic and launch.nodes is not None and launch.nodes < least:
        raise LaunchError(
            f"torchrun has started {launch.nodes} node(s) and expected {least} (--nnodes): node "
            f"{env.host_name()} would train without the others. torchrun drops a node whose "
            "clock is more than 15 seconds behind. Compare `date -u` on all nodes, set the clocks, "
            "and start again."
        )


def _least_nodes() -> int:
    """Return the fewest nodes that this process's parent may start, by its command line; else 1."""
    try:
        with open(f"/proc/{os.getppid()}/cmdline", encoding="utf-8", errors="replace") as file:
            least = re.search(r"\0--nnodes[=\0](\d+)", file.read())
    except OSError:
        least = None
    return int(least[1]) if least else 1
