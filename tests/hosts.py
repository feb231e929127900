"""Real hosts for tests: copies of the installed robomimic, and subprocesses that train with them.

    result = torchrun(host, "robomimic.scripts.train", "--config", path, ranks=2)
    assert result.returncode == 0, result

A subprocess gets the host's folder first on PYTHONPATH, one thread for each rank, no GPU, and none
of this process's launcher variables. Everything that it started and left running is found,
reported and killed.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from robomimic_ddp import cli
from robomimic_ddp.distributed import rendezvous
from tests.warm.client import AT_START, can_be_warm, server
from tests.warm.jobs import ColdJob, Job, WarmJob

ROOT = Path(__file__).resolve().parents[1]
NO_TENSORFLOW = {"PYTHONPATH": os.pathsep.join([str(ROOT / "tests/without_tensorflow"), str(ROOT)])}
"""For a cold start without a host: no process finds TensorFlow."""
DISTRIBUTION = "praxis-robomimic"
FINISHED = "finished run successfully!"
ABORT_TEXTS = (
    "terminate called",
    "core dumped",
    "Fatal Python error",
    "Segmentation fault",
    "Signal 6",
    "SIGABRT",
    "leaked semaphore",
    "destroy_process_group() was not called",
    "Exception ignored in",
)
"""What an unclean end leaves on standard error."""

_LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "SLURM_", "TORCHELASTIC_", "ROBOMIMIC_DDP_")
LENT = "GPU_CHECK_LENT"
"""A folder of packages that scripts/gpu_check.sh lends to an environment."""
_GONE_SECONDS = 5.0
SOON_SECONDS = 60.0


@dataclass(frozen=True)
class Host:
    """A copy of the host: `folder` is for PYTHONPATH, `package` is the folder robomimic in it."""

    folder: Path

    @property
    def package(self) -> Path:
        return self.folder / "robomimic"


def installed_package() -> Path:
    """The folder of the installed robomimic, which no test may change."""
    return Path(str(metadata.distribution(DISTRIBUTION).locate_file("robomimic")))


def copy_host(folder: Path, *, small: bool = True) -> Host:
    """Copies the installed robomimic into `folder`. `small`: with a diffusion net for tests."""
    host = Host(folder)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(installed_package(), host.package, ignore=ignored)
    if small:
        _shrink(host)
    return host


def _shrink(host: Host) -> None:
    """For tests only: 60 thousand parameters in place of 67 million.

    The host reads no size of this net from its config (`algo.unet.down_dims` never reaches it), so
    the copy's defaults are changed. Both the edited and the unedited copy get the same.
    """
    path = host.package / "models" / "diffusion_policy_nets.py"
    text = path.read_text()
    for old, new in (
        ("down_dims=[256,512,1024],", "down_dims=[16,32],"),
        ("diffusion_step_embed_dim=256,", "diffusion_step_embed_dim=32,"),
    ):
        assert text.count(old) == 1, f"{path} has changed: {old!r} was expected once"
        text = text.replace(old, new)
    path.write_text(text)


def apply(host: Host) -> Host:
    """Edits the copy as the command line does, in this process."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = cli.main(["apply", str(host.package)])
    assert code == 0, printed.getvalue()
    return host


@dataclass(frozen=True)
class Result:
    """What a subprocess left. `leftovers`: command lines of processes that outlived it (killed)."""

    returncode: int
    stdout: str
    stderr: str
    leftovers: tuple[str, ...]
    timed_out: bool
    ended: float
    """When its first process ended, as `time.time()`."""

    def __str__(self) -> str:
        return (
            f"exit code {self.returncode}{' after its time ran out' if self.timed_out else ''}, "
            f"leftovers {list(self.leftovers)}\n----- stdout\n{self.stdout[-4000:]}\n"
            f"----- stderr\n{self.stderr[-8000:]}"
        )

    def abort_texts(self) -> list[str]:
        """Signs of an unclean end on standard error."""
        return [text for text in ABORT_TEXTS if text in self.stderr]


def require_clean(result: Result) -> None:
    """Fails unless the run ended with 0, left nothing behind and said nothing of an abort."""
    assert result.returncode == 0, result
    assert not result.leftovers, result
    assert not result.abort_texts(), result


def require_finished(result: Result) -> None:
    """Fails unless the job trained to its end, whatever its attempts said on the way."""
    assert result.returncode == 0 and FINISHED in result.stdout, result
    assert not result.leftovers, result


def require_soon(result: Result) -> None:
    """Fails unless the run ended soon after the fault that says "at time <time.time()>", and no
    rank had to be killed. Busy machines take long for everything: hence a minute.
    """
    fault = min(float(number) for number in re.findall(r" at time (\d+\.\d+)", result.stderr))
    assert not result.timed_out and result.ended - fault < SOON_SECONDS, result
    assert "forcefully exiting" not in result.stderr, result


def environment(host: Host | None, added: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables of a subprocess, whatever this process was started with."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(_LAUNCHER)}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)  # to compile all modules again costs 1 s
    paths = [host.folder] if host is not None else []
    lent = [text] if (text := os.environ.get(LENT)) else []
    kept.update(
        PYTHONPATH=os.pathsep.join(str(path) for path in [*paths, ROOT, *lent]),
        PYTHONHASHSEED="0",
        PYTHONFAULTHANDLER="1",
        OMP_NUM_THREADS="1",
        OMP_WAIT_POLICY="passive",  # the host asks for two threads; spinning, they starve ranks
        CUDA_VISIBLE_DEVICES="",
        USE_TF="0",  # transformers would import TensorFlow to look at it: half of a host's start
    )
    return {**kept, **(added or {})}


def torchrun(
    host: Host | None,
    module: str,
    *arguments: object,
    ranks: int = 2,
    restarts: int = 0,
    **options: Any,
) -> Result:
    """Runs `module` on `ranks` ranks of this machine under the real torchrun, on a free port.
    `restarts`: how often torchrun may start the ranks again. `options`: see `python`.
    """
    launcher = [f"--nproc_per_node={ranks}", f"--max-restarts={restarts}", "-m", module]
    words = ["-m", "torch.distributed.run", *rendezvous.on_this_machine(), *launcher, *arguments]
    return _python(host, words, ranks * (restarts + 1), **options)


def python(host: Host | None, module: str, *arguments: object, **options: Any) -> Result:
    """Runs `python -m module arguments` with a host.

    `cold`: from Python's own start, as with a variable in `added` that is read there; else, where
    the system can, from a process that has imported other people's packages (tests/warm/server.py;
    `rlds`: TensorFlow too), in a tenth of the time.
    With the variable ROBOMIMIC_TEST_COLD all starts are cold. Other options: see `run`.
    """
    return _python(host, ["-m", module, *arguments], 0, **options)


def _python(
    host: Host | None,
    words: list[object],
    ranks: int,
    *,
    cold: bool = False,
    rlds: bool = False,
    **options: Any,
) -> Result:
    cold = cold or "ROBOMIMIC_TEST_COLD" in os.environ
    if cold or not can_be_warm() or {*AT_START} & {*(options.get("added") or {})}:
        return run(host, sys.executable, *words, **options)
    warm = server("rlds" if rlds else "host", environment(None))

    def start(command: list[str], **files: Any) -> Job:
        return WarmJob(warm, command, ranks, **files)

    return run(host, *words, start=start, **options)


def run(
    host: Host | None,
    *command: object,
    timeout: float = 180.0,
    added: Mapping[str, str] | None = None,
    start: Callable[..., Job] = ColdJob,
) -> Result:
    """Runs a command to its end or `timeout` seconds, and ends whatever it left behind.

    When the time runs out, each process prints the stacks of its threads before it is killed.
    """
    with tempfile.TemporaryDirectory(prefix="run-") as folder:
        # Files, not pipes: a process left behind would keep a pipe open, and reading would hang.
        out, err = Path(folder, "stdout"), Path(folder, "stderr")
        for path in (out, err):
            path.touch()
        variables = environment(host, added)
        words = [str(word) for word in command]
        job = start(words, folder=folder, variables=variables, stdout=out, stderr=err)
        timed_out = _wait(job, timeout)
        ended = time.time()
        leftovers = _end_leftovers(job, 0.0 if timed_out else _GONE_SECONDS)
        returncode = job.wait(_GONE_SECONDS)
        texts = (path.read_text(errors="replace") for path in (out, err))
        return Result(returncode, *texts, leftovers, timed_out, ended)


def _wait(job: Job, timeout: float) -> bool:
    """Waits for the end; at the timeout makes every process of the run show its stacks."""
    if job.wait(timeout) is not None:
        return False
    for process in job.processes():
        process.send_signal(signal.SIGABRT)  # PYTHONFAULTHANDLER prints the stacks
    time.sleep(1.0)
    return True


def _end_leftovers(job: Job, patience: float) -> tuple[str, ...]:
    """What still runs `patience` seconds after the end, as command lines; then kills it."""
    deadline = time.monotonic() + patience
    left = job.processes()
    while left and time.monotonic() < deadline:
        time.sleep(0.1)
        left = job.processes()
    lines = []
    for process in left:
        try:
            lines.append(" ".join(process.cmdline()))
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(left, timeout=_GONE_SECONDS)
    return tuple(lines)
