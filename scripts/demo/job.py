"""What the demos share: steps, an edited copy of the installed host, trainings that resume."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from robomimic_ddp.checkpoint import state_file
from robomimic_ddp.commands.training_process import handling
from robomimic_ddp.config import env
from robomimic_ddp.distributed import rendezvous
from robomimic_ddp.errors import EXIT_DONE, EXIT_REFUSED, DataError, RobomimicDDPError
from robomimic_ddp.terminal import print_clean, say, width, wrapped
from scripts.demo.summary import in_words

CHECKOUT = Path(__file__).resolve().parents[2]
_SIMULATOR = """

def get_env_class(env_meta=None, env_type=None, env=None):
    # The demo of robomimic-ddp has one task, and its checkout is on Python's path.
    from scripts.demo.environment import ReachEnv

    return ReachEnv
"""
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SHOWN = re.compile(
    r"epoch \d+: |Epoch \d+ Rollouts|mode: |batch: |resuming |\d+ episodes are"
    r"|\d+ demonstrations of "
)
"""How the lines of a step's programs begin that the terminal shows; all are in the step's log."""
_LESS = re.compile(r"(step \d+/\d+|[\d.e+]+ steps/s|data wait \d+%|ETA [\d:]+), ")
"""What a line of an epoch's end has besides, which 80 columns have no room for."""
_LOOK_SECONDS, _TAIL_LINES = 0.5, 40
"""Between two looks into a log; lines of it after a failure, as many as a launcher writes."""


class Job:
    """Steps under the folder `root`; trainings on `ranks` ranks, by default one for each visible
    GPU, or two on the CPU.
    """

    def __init__(
        self, root: Path, ranks: int | None = None, steps: Mapping[str, str] | None = None
    ) -> None:
        self.root, self.ranks = root.absolute(), ranks or torch.cuda.device_count() or 2
        self.does = dict(steps or {})
        """What steps do, for their first lines."""
        self.left = list(self.does)
        """Names of the steps that are still to be done."""
        self.host = self.root / "host"
        """The folder of the edited host, for PYTHONPATH."""
        self.seconds: dict[str, float] = {}  # of each step that was done now
        self.log: Path | None = None  # of the present step

    def step(self, name: str, make: Callable[[], Any], done: bool = False) -> None:
        """Calls `make()` unless the step is `done`; prints which, and the seconds. What its
        programs print is added to `root/logs/NAME.log`.
        """
        self.left = [one for one in self.left if one != name]
        if done:
            print(f"\n=== {name}: done before", flush=True)
            return
        does = f": {self.does[name]}" if self.does.get(name) else ""
        say(f"\n=== {name}{does} ===")
        started = time.perf_counter()
        self.log = self.root / "logs" / f"{name}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        try:
            make()
        except SystemExit:
            say(f"the demo was stopped at: {name}. {self._second_run(name)}", file=sys.stderr)
            raise
        finally:
            self.log = None
        self.seconds[name] = round(time.perf_counter() - started, 1)
        print(f"=== {name}: {self.seconds[name]:.0f} s", flush=True)

    def _second_run(self, name: str) -> str:
        """What the same command does after a stop in the step `name`."""
        saved = any(state_file.exists(run) for run in (self.root / name).glob("*/*/"))
        how = f"resumes the {name} where it has saved" if saved else f"does the {name} again"
        then = f", then: {', '.join(self.left)}" if self.left else ""
        return f"The same command keeps what was done before, {how}{then}."

    def patch_host(self) -> None:
        """Copies the installed host to `host` and edits the copy; replaces what is there."""
        package = importlib.metadata.distribution("praxis-robomimic").locate_file("robomimic")
        shutil.rmtree(self.host, ignore_errors=True)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(str(package), self.host / "robomimic", ignore=ignored)
        self.python("robomimic_ddp", "apply", "--with", "unet_config", self.host / "robomimic")

    def add_simulator(self) -> None:
        """Has `host` simulate the block demo's task, for `robomimic-ddp evaluate`."""
        with open(self.host / "robomimic" / "utils" / "env_utils.py", "a") as file:
            file.write(_SIMULATOR)

    def train(
        self, name: str, module: str, config: Path, arguments: Sequence[str], resume: str
    ) -> Path:
        """The step `name`: trains below `root/name` and returns the run's folder.

        A run with the same `config` text, `arguments` and ranks is left as it is where it has
        finished, and gets the argument `resume` where it has saved a state. Another one is removed.
        """
        folder = self.root / name
        started = folder / "started.json"
        command = json.dumps([self.ranks, *arguments, config.read_text()])
        same = started.exists() and started.read_text() == command
        records = [json.loads(file.read_text()) for file in folder.glob("*/*/ddp.json")]
        finished = same and any("outcome" in record for record in records)
        resumes = same and any(state_file.exists(run) for run in folder.glob("*/*/"))
        if not (resumes or finished):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            started.write_text(command)
        launcher = [*rendezvous.on_this_machine(), f"--nproc_per_node={self.ranks}", "-m", module]
        launcher += [*arguments, *[resume] * resumes]
        self.step(name, lambda: self.python("torch.distributed.run", *launcher), finished)
        (record,) = folder.glob("*/*/ddp.json")
        return record.parent

    def python(self, module: str, *arguments: object) -> None:
        """Runs `python -m module` with the edited host first on its path. Its output goes to the
        log of the step, and a few lines of it to the terminal; outside a step all to the terminal.
        A signal is passed on to it, and ends this process after it by SystemExit. Raises DataError,
        after the log's last lines, where it fails.
        """
        command = [sys.executable, "-m", module, *(str(word) for word in arguments)]
        variables = env.child_environment([str(self.host), str(CHECKOUT)])
        if self.log is None:
            code = self._wait(subprocess.Popen(command, env=variables, start_new_session=True))
        else:
            variables["PYTHONUNBUFFERED"] = "1"  # else an epoch's line is seen epochs later
            code = self._logged(command, variables, self.log)
        if code != 0:
            seen = "see above" if self.log is None else f"see above and {self.log}"
            raise DataError(
                f"the demo stopped: {module} ended with exit code {code}, {seen}. "
                f"{self.root} has the files of earlier steps."
            )

    def _logged(self, command: list[str], variables: dict[str, str], log: Path) -> int:
        """The exit code of `command`, whose output is added to `log`."""
        with log.open("ab") as file, log.open(errors="replace") as reader:
            reader.seek(0, 2)
            begun = reader.tell()
            # In a file, not a pipe: the program outlives this process unharmed, and one that it
            # left behind cannot keep this process waiting for the end of the output.
            output = {"stdout": file, "stderr": subprocess.STDOUT}
            process = subprocess.Popen(command, env=variables, start_new_session=True, **output)
            rest, shown = "", set()

            def show() -> None:
                nonlocal rest
                *lines, rest = (rest + reader.read()).split("\n")
                for line in lines:
                    if _SHOWN.match(line) and line not in shown:  # a plan has some lines twice
                        shown.add(line)
                        text = _LESS.sub("", line)
                        print_clean("\n".join(wrapped(text, width(), "    ", "")))

            code = self._wait(process, show)
            if code != 0:
                reader.seek(begun)
                print(*reader.read().splitlines()[-_TAIL_LINES:], sep="\n", file=sys.stderr)
        return code

    def _wait(self, process: subprocess.Popen, look: Callable[[], None] = lambda: None) -> int:
        """The exit code of `process`, which is in another session: a terminal's Ctrl-C would reach
        torchrun twice. Calls `look` meanwhile and at its end. Raises SystemExit after a signal.
        """
        heard: list[int] = []

        def pass_on(number: int, frame: Any) -> None:
            heard.append(number)
            process.send_signal(number)

        code = None
        with handling(_PASSED_ON, pass_on):
            while code is None:
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(_LOOK_SECONDS)
                look()
        if heard:
            raise SystemExit(128 + heard[0])
        return code


def _stop(number: int, frame: Any) -> None:
    print("the demo was stopped: the same command resumes it", file=sys.stderr)
    raise SystemExit(128 + number)


def exit_code_of(root: Path, run: Callable[[], dict[str, Any]]) -> int:
    """Runs a demo, writes its summary to `root/summary.json` and prints it in words, or its error;
    returns the exit code.
    """
    started = time.perf_counter()
    try:
        with handling(_PASSED_ON, _stop):
            summary = run()
    except RobomimicDDPError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except SystemExit as stopped:
        return stopped.code
    (root / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    minutes, seconds = divmod(round(time.perf_counter() - started), 60)
    print(f"\n=== done in {minutes} min {seconds} s ===\n{in_words(root.absolute(), summary)}")
    return EXIT_DONE
