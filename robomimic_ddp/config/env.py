"""The only reader of `os.environ`: what this process was started with, and what it sets for itself
and for the processes that it starts. `launch_env` makes sense of the launcher's variables.
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
from pathlib import Path

_WANDB = "WANDB_MODE"
_RENDERING = ("MUJOCO_EGL_DEVICE_ID", "EGL_DEVICE_ID")


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
    variables_of_gpu = rendering_variables(number).items()
    with _changed({name: text for name, text in variables_of_gpu if name not in os.environ}):
        yield


def rendering_variables(gpu: str) -> dict[str, str]:
    """Return the variables by which simulators render on the machine's GPU number `gpu`; none for
    another name of a GPU, or for several.
    """
    return dict.fromkeys(_RENDERING, gpu) if gpu.isdecimal() else {}


@contextmanager
def _changed(texts: Mapping[str, str]) -> Iterator[None]:
    """For the block, the variables have these texts."""
    before = {name: os.environ.get(name) for name in texts}
    os.environ.update(texts)
    try:
        yield
    finally:
        for name, text in before.items():
            os.environ.pop(name, None)
            if text is not None:
                os.environ[name] = text


def without_wandb(off: bool = True) -> AbstractContextManager[None]:
    """For the block, if `off`, `wandb.init` starts no run, whichever class of the host calls it."""
    return _changed({_WANDB: "disabled"} if off else {})


def wandb_mode() -> str | None:
    """WANDB_MODE: "online", "offline", "disabled", ..."""
    return os.environ.get(_WANDB) or None


def command_line() -> list[str]:
    """Return the words that started this process, the interpreter first."""
    return list(sys.orig_argv)


_ALLOCATED = ({"SLURM_JOB_ID"}, {"LSB_JOBID"}, {"PBS_JOBID"}, {"JOB_ID", "SGE_ROOT"})
"""Variables that a job of Slurm, LSF, PBS or Grid Engine has."""


def repeated_variables() -> dict[str, str]:
    """Return those of PYTHONPATH, CUDA_VISIBLE_DEVICES and WANDB_MODE that are set, for a process
    that continues this one. In the job of a scheduler CUDA_VISIBLE_DEVICES is left out: it may have
    set it, and the GPUs of another allocation have other numbers.
    """
    names = ["PYTHONPATH", "CUDA_VISIBLE_DEVICES", _WANDB]
    if any(allocated <= os.environ.keys() for allocated in _ALLOCATED):
        names.remove("CUDA_VISIBLE_DEVICES")
    return {name: os.environ[name] for name in names if os.environ.get(name)}


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


_DEFERS_TENSORFLOW = {"USE_TF": "0", "TF_CPP_MIN_LOG_LEVEL": "2"}
"""transformers, which hosts import, loads TensorFlow only to look at it: a third of a rank's start
and of its memory then. Where a host loads it itself, it prints no start-up messages.
"""


def defer_tensorflow() -> None:
    """Leave TensorFlow to code that imports it, unless the user has set these variables."""
    for name, text in _DEFERS_TENSORFLOW.items():
        os.environ.setdefault(name, text)


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


REQUEUE_NOTE = "ROBOMIMIC_REQUEUE_NOTE"
"""The file in which a job's script reads the marker's name of a run that has stopped on request."""


def requeue_note() -> Path | None:
    """Return that file, if a script of this job asks for it."""
    file = os.environ.get(REQUEUE_NOTE)
    return Path(file) if file else None


def keep_requeue_note(text: str) -> None:
    """Leaves `text` to the script of this job, if it asks for it, in the file that it has made: one
    that is not there is on another node's disk. Raises OSError.
    """
    file = requeue_note()
    if file is not None:
        with open(file, "r+", encoding="utf-8") as note:
            note.truncate()
            note.write(text)


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


def become(command: list[str], variables: Mapping[str, str]) -> None:
    """Replaces this process by `command`, with these variables alone. Does not return."""
    os.execvpe(command[0], command, variables)


def child_environment(python_path: list[str]) -> dict[str, str]:
    """Environment for a Python program of ours, with `python_path` first in PYTHONPATH.

    One thread for each rank unless the user set another number; see also `defer_tensorflow`.
    """
    variables = {"OMP_NUM_THREADS": "1", **_DEFERS_TENSORFLOW, **os.environ}
    before = [variables["PYTHONPATH"]] if variables.get("PYTHONPATH") else []
    return {**variables, "PYTHONPATH": os.pathsep.join([*python_path, *before])}


def simulator_environment(gpu: str) -> dict[str, str]:
    """Environment for a process that simulates: it sees and renders on `gpu` alone ("": none), and
    off screen where there is no display. Variables for rendering that the user has set stay.
    """
    visible = {"CUDA_VISIBLE_DEVICES": gpu}
    variables = {**rendering_variables(gpu), **child_environment([]), **visible}
    if {"DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"}.isdisjoint(variables):
        # Where the library is missing, `import mujoco` would fail, which may render nothing.
        names = ("egl", "osmesa") if gpu else ("osmesa", "egl")
        libraries = {"egl": "EGL", "osmesa": "OSMesa"}
        present = [name for name in names if ctypes.util.find_library(libraries[name])]
        if present:
            variables["MUJOCO_GL"] = present[0]
    return variables
