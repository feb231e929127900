"""The only reader of `os.environ`: the launcher's variables and ours, as one frozen value.

torchrun exports RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT
(https://docs.pytorch.org/docs/stable/elastic/run.html). Options are read from ROBOMIMIC_DDP_<NAME>.
"""

from __future__ import annotations

import ctypes.util
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from robomimic_ddp.errors import LaunchError

OPTION_PREFIX = "ROBOMIMIC_DDP_"
_LAUNCH_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
_LAST_PORT = 65535
_RENDERING = ("MUJOCO_EGL_DEVICE_ID", "EGL_DEVICE_ID")
_RECORDS_COLLECTIVES = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
_COLLECTIVES_PREFIX = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"


@dataclass(frozen=True)
class LaunchEnv:
    """The launcher's and our environment variables.

    launched: whether a launcher exported RANK, WORLD_SIZE and LOCAL_RANK; if not, the process is
    rank 0 of 1. tells_node: whether it exported LOCAL_WORLD_SIZE; if not, the ranks of this node
    must be counted, and `local_world_size` is a lower bound. error_file: where torchrun reads why a
    rank failed; node, nodes: number of this node, from 0, and how many, where torchrun says it;
    shown_by_launcher: whether torchrun prints it, since no restart is left. run_id,
    restart_count: torchrun's job id and number of restarts, which nodes count separately: a node
    that replaces another has 0; run_id is Slurm's without torchrun. requeued: whether Slurm has
    started the job before. attempt: restart_count where ranks that are started again
    meet in the same store; 0 where they have a new one. option_texts: option names in lower
    case -> unparsed text of ROBOMIMIC_DDP_<NAME>. SLURM_* alone is not a launcher: interactive
    shells of a cluster export them too.
    """

    launched: bool = False
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    tells_node: bool = True
    restart_count: int = 0
    attempt: int = 0
    elastic: bool = False
    error_file: str | None = None
    shown_by_launcher: bool = False
    run_id: str | None = None
    requeued: bool = False
    node: int | None = None
    nodes: int | None = None
    cuda_visible_devices: str | None = None
    option_texts: Mapping[str, str] = field(default_factory=dict)


def read_launch_env(environ: Mapping[str, str] | None = None) -> LaunchEnv:
    """Reads `environ` (default: os.environ).

    Raises LaunchError if the launcher's variables are incomplete, not numbers, or contradictory.
    """
    environ = os.environ if environ is None else environ
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
            "could not find each other, or would all believe to be the same one. Start the ranks "
            f"with torchrun, which sets all of {', '.join(_LAUNCH_NAMES)}; for one process, unset "
            f"{' and '.join(present)}."
        )
    rank, world_size, local_rank = (_integer(environ, name) for name in _LAUNCH_NAMES)
    least = max(1, min(local_rank + 1, world_size))
    local_world_size = _integer(environ, "LOCAL_WORLD_SIZE", default=least)
    _check_ranges(rank, world_size, local_rank, local_world_size)
    _check_rendezvous(environ, world_size)
    restarts = _integer(environ, "TORCHELASTIC_RESTART_COUNT", default=0)
    return LaunchEnv(
        launched=True,
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        local_world_size=local_world_size,
        tells_node="LOCAL_WORLD_SIZE" in environ,
        restart_count=restarts,
        attempt=restarts if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else 0,
        elastic="TORCHELASTIC_RUN_ID" in environ,
        error_file=environ.get("TORCHELASTIC_ERROR_FILE") or None,
        shown_by_launcher=_is_last_attempt(environ),
        run_id=environ.get("TORCHELASTIC_RUN_ID", environ.get("SLURM_JOB_ID")),
        requeued=_integer(environ, "SLURM_RESTART_COUNT", default=0) > 0,
        node=_integer(environ, "GROUP_RANK") if "GROUP_RANK" in environ else None,
        nodes=_integer(environ, "GROUP_WORLD_SIZE", default=0) or None,
        **common,
    )


def task_of_job(launch: LaunchEnv, environ: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Return (number, count) of this process among those of a job that exchange nothing: the ranks
    of all tasks of a Slurm array, from 0. Raises LaunchError for an array with gaps.
    """
    environ = os.environ if environ is None else environ
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
            "each task has its share of the files by its number, so an array needs all of them. "
            "Submit it as 0 to N-1; finished files are not written again."
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
        raise LaunchError(
            f"WORLD_SIZE={world_size} but {' and '.join(missing)} is not set, so the ranks cannot "
            "meet. torchrun sets both; with another launcher, export the address and a free port "
            "of the main node."
        )
    port = environ.get("MASTER_PORT", "1")
    if world_size > 1 and not (port.isdecimal() and 1 <= int(port) <= _LAST_PORT):
        raise LaunchError(
            f"MASTER_PORT={port!r} is not a port: expected 1 to {_LAST_PORT}, the same one on "
            "every rank and free on the main node. torchrun chooses one by itself."
        )


def under_torchrun() -> bool:
    """Return whether torchrun has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def main_address() -> str:
    """Return where the ranks meet, as the launcher says it, for a message."""
    return f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"


def launcher() -> str | None:
    """Return a name of the process that has started this one, which no other process has; None
    without /proc.
    """
    parent = os.getppid()
    try:
        with open(f"/proc/{parent}/stat", encoding="utf-8", errors="replace") as file:
            started = file.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
    return f"{host_name()}:{parent}:{started}"


def adopted_by_init(parent: int) -> bool:
    """Return whether `parent`, this process's parent, is init, which adopts the children of a dead
    process. In a container process 1 may be the launcher itself, which runs the same Python.
    """
    if parent == 1:
        try:
            return os.readlink("/proc/1/exe") != os.path.realpath("/proc/self/exe")
        except OSError:  # another user's process (so no launcher of ours), or no /proc
            return True
    try:
        with open(f"/proc/{parent}/comm", encoding="utf-8") as file:
            return file.read().strip() == "systemd"  # a user's own init
    except OSError:
        return False


def host_name() -> str:
    """Return this node's name, by which ranks know whether they share a machine."""
    return socket.gethostname()


@contextmanager
def rendering_on(gpu: int) -> Iterator[None]:
    """For the block, simulators render on this process's GPU number `gpu`; by default all ranks
    render on the first. Variables set by the user stay.

    MUJOCO_EGL_DEVICE_ID is read by mujoco (gymnasium, dm_control) and robosuite, EGL_DEVICE_ID by
    older dm_control. They count the machine's GPUs, not those of CUDA_VISIBLE_DEVICES; if that does
    not name GPUs by number, nothing is set.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    numbers = [str(gpu)] * (gpu + 1) if visible is None else visible.replace(" ", "").split(",")
    number = numbers[gpu] if gpu < len(numbers) else ""
    with _added(dict.fromkeys(_RENDERING, number) if number.isdecimal() else {}):
        yield


@contextmanager
def _added(texts: Mapping[str, str]) -> Iterator[None]:
    """For the block, adds the variables that the user has not set."""
    added = {name: text for name, text in texts.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def wandb_mode() -> str | None:
    """WANDB_MODE: "online", "offline", "disabled", ..."""
    return os.environ.get("WANDB_MODE") or None


def command_line() -> list[str]:
    """Return the words that started this process, the interpreter first."""
    return list(sys.orig_argv)


def python_path() -> str:
    """Return PYTHONPATH as this process has it; "" without one."""
    return os.environ.get("PYTHONPATH", "")


def working_folder() -> str:
    """Return the folder that relative paths and `python -m` start from; "" where it was removed.
    Under `hydra.main`, which may have entered its output folder, it is where the program started.
    """
    hydra = sys.modules.get("hydra.core.hydra_config")
    if hydra is not None and hydra.HydraConfig.initialized():
        return hydra.HydraConfig.get().runtime.cwd
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def missing_from_path(program: str) -> bool:
    """Return whether the shell would not run `program` of this interpreter's environment."""
    path = shutil.which(program)
    return path is None or Path(path).parent != Path(sys.executable).parent


def variables() -> dict[str, str]:
    """Return a copy of this process's environment variables."""
    return dict(os.environ)


def prefer_deterministic_cublas() -> None:
    """Give cuBLAS a workspace of fixed size, unless the user has. Read when CUDA is first used."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def record_collectives() -> None:
    """Has NCCL remember its latest collectives and write them to a file when one times out (torch's
    flight recorder), unless the user has chosen otherwise. Read when a process group is made.
    """
    for name, text in _RECORDS_COLLECTIVES.items():
        os.environ.setdefault(name, text)


def collectives_kept_in(folder: Path) -> AbstractContextManager[None]:
    """For the block, each rank's file of `record_collectives` is made in `folder`, unless the user
    has chosen another place. Read when it is written.
    """
    return _added({_COLLECTIVES_PREFIX: str(folder / "nccl_trace_")})


def recorded_collectives() -> str | None:
    """Return how the names of these files begin; None where none are written."""
    written = all(os.environ.get(name, "0") not in ("", "0") for name in _RECORDS_COLLECTIVES)
    return os.environ.get(_COLLECTIVES_PREFIX) or None if written else None


def quiet_tensorflow() -> None:
    """Silences TensorFlow's start-up messages in this process, unless the user set a log level."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


def tensorflow_is_quiet() -> bool:
    """Return whether this process wants no more than TensorFlow's errors."""
    return os.environ.get("TF_CPP_MIN_LOG_LEVEL", "0") >= "2"


RESUME_NOTE = "ROBOMIMIC_RESUME_NOTE"
"""The file in which our launcher reads, when its ranks have ended, how they can be resumed."""
RUN_NOTE = "run"
"""The name of another one there, with the folder of the run."""


def keep_resume_note(text: str) -> None:
    """Leaves `text` to our launcher, if it has started this process, and a file can be written."""
    file = os.environ.get(RESUME_NOTE)
    if file:
        with suppress(OSError):
            Path(file).write_text(text, encoding="utf-8")


EVALUATE = "ROBOMIMIC_EVALUATE"
"""The arguments of `evaluate` with which our launcher follows the run, in words of a shell."""


def evaluation() -> str:
    """Return the value of EVALUATE; "" where nothing is evaluated."""
    return os.environ.get(EVALUATE, "")


def keep_run_note(directory: Path) -> None:
    """Leaves the run's folder to our launcher, if it has started this process to evaluate it."""
    file = os.environ.get(RESUME_NOTE)
    if file and EVALUATE in os.environ:
        Path(file).with_name(RUN_NOTE).write_text(str(directory), encoding="utf-8")


@contextmanager
def resume_note() -> Iterator[Path]:
    """For the block, processes that are started keep their resume note in this file."""
    with tempfile.TemporaryDirectory(prefix="robomimic-ddp-") as folder:
        os.environ[RESUME_NOTE] = os.path.join(folder, "resume")
        try:
            yield Path(os.environ[RESUME_NOTE])
        finally:
            del os.environ[RESUME_NOTE]


def become(command: list[str], added: Mapping[str, str]) -> None:
    """Replaces this process by `command`, with the variables `added`. Does not return."""
    os.execvpe(command[0], command, {**os.environ, **added})


def child_environment(python_path: list[str]) -> dict[str, str]:
    """Environment for a Python program of ours, with `python_path` first in PYTHONPATH.

    One thread for each rank unless the user set another number; transformers, which hosts import,
    does not load TensorFlow; no start-up messages of TensorFlow.
    """
    variables = {"OMP_NUM_THREADS": "1", "USE_TF": "0", "TF_CPP_MIN_LOG_LEVEL": "2", **os.environ}
    before = [variables["PYTHONPATH"]] if variables.get("PYTHONPATH") else []
    return {**variables, "PYTHONPATH": os.pathsep.join([*python_path, *before])}


def simulator_environment(gpu: str) -> dict[str, str]:
    """Environment for a process that simulates: it sees and renders on `gpu` alone ("": none), and
    off screen where there is no display. Variables for rendering that the user has set stay.
    """
    variables = {**child_environment([]), "CUDA_VISIBLE_DEVICES": gpu}
    for name in _RENDERING if gpu.isdecimal() else ():
        variables.setdefault(name, gpu)
    if {"DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"}.isdisjoint(variables):
        # Where the library is missing, `import mujoco` would fail, which may render nothing.
        names = ("egl", "osmesa") if gpu else ("osmesa", "egl")
        libraries = {"egl": "EGL", "osmesa": "OSMesa"}
        present = [name for name in names if ctypes.util.find_library(libraries[name])]
        if present:
            variables["MUJOCO_GL"] = present[0]
    return variables
