"""What the demos share: steps that are done once, a patched copy of the installed host, and Python
programs that run with it.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Callable

from robomimic_ddp import env, rendezvous
from robomimic_ddp.demo.stamps import CHECKOUT, Stamps, code_version, fresh_folder
from robomimic_ddp.errors import EXIT_DONE, EXIT_REFUSED, DataError, RobomimicDDPError

CPU_RANKS = 2
HOST = "praxis-robomimic"
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Job:
    """Steps under the folder `root`, each made once for the same inputs."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.root.mkdir(parents=True, exist_ok=True)
        self.stamps = Stamps(self.root)

    def step(self, name: str, inputs: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        """The result of `make()`, made now or in an earlier run; prints which, and the seconds."""
        made = []

        def timed() -> Any:
            print(f"\n=== {name} ===", flush=True)
            started = time.perf_counter()
            made.append(make())
            print(f"=== {name}: {time.perf_counter() - started:.0f} s", flush=True)
            return made[0]

        result = self.stamps.run(name, inputs, timed)
        if not made:
            print(f"=== {name}: done before", flush=True)
        return result

    def host_inputs(self) -> dict[str, Any]:
        """What the patched host is made from."""
        return {"host": importlib.metadata.version(HOST), "patches": code_version("patches")}

    def patch_host(self) -> str:
        """Copies the installed host and edits the copy; returns its folder, for PYTHONPATH."""
        folder = fresh_folder(self.root / "host")
        package = importlib.metadata.distribution(HOST).locate_file("robomimic")
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(str(package), folder / "robomimic", ignore=ignored)
        self.python("robomimic_ddp", "apply", "--with", "unet_config", folder / "robomimic")
        return str(folder)

    def torchrun(self, ranks: int, module: str, *arguments: object, host: str) -> None:
        """Runs `module` of the patched host on `ranks` ranks of this machine."""
        launcher = [*rendezvous.on_this_machine(), f"--nproc_per_node={ranks}", "-m", module]
        self.python("torch.distributed.run", *launcher, *arguments, host=host)

    def python(self, module: str, *arguments: object, host: str | None = None) -> None:
        """Runs `python -m module` with the patched host, if any, first on its path."""
        path = ([host] if host else []) + [str(CHECKOUT)]
        command = [sys.executable, "-m", module, *(str(word) for word in arguments)]
        code, heard = _run(command, env.child_environment(path))
        if heard is not None:
            print(
                f"the demo was stopped by {heard.name}; the same command resumes it",
                file=sys.stderr,
            )
            raise SystemExit(128 + heard)
        if code != 0:
            raise DataError(
                f"the demo stopped: {module} ended with exit code {code}, see above. "
                f"{self.root} holds what came before it."
            )

    def training_folder(self, name: str) -> tuple[Path, bool]:
        """Where the training of the step in hand writes, and whether it resumes there what was cut
        short; else the folder is empty.
        """
        folder = self.root / name
        if self.stamps.cut_short and any(folder.glob("*/*/ddp.json")):
            return folder, True
        return fresh_folder(folder), False


def _run(command: list[str], variables: Mapping[str, str]) -> tuple[int, signal.Signals | None]:
    """Runs `command` to its end: its exit code, and the first signal that was passed on to it.

    It has a session of its own, since torchrun takes one Ctrl-C as one, and a terminal's would come
    twice.
    """
    heard: list[int] = []
    process = subprocess.Popen(command, env=variables, start_new_session=True)

    def pass_on(number: int, frame: Any) -> None:
        heard.append(number)
        process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code, signal.Signals(heard[0]) if heard else None


def runtime_version(folders: Sequence[str]) -> str:
    """A digest of the package's modules that training uses, with those of its `folders`."""
    modules = [file.name for file in (CHECKOUT / "robomimic_ddp").glob("*.py")]
    return code_version(*(f"robomimic_ddp/{name}" for name in (*folders, *modules)))


def visible_gpus() -> int:
    """CUDA devices that this process sees, after CUDA_VISIBLE_DEVICES."""
    import torch

    return torch.cuda.device_count()


def exit_code_of(run: Callable[[], dict[str, Any]]) -> int:
    """Runs a demo and prints its summary, or its error; returns the exit code."""
    try:
        summary = run()
    except RobomimicDDPError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except KeyboardInterrupt:
        print("the demo was interrupted; the same command resumes it", file=sys.stderr)
        return 128 + signal.SIGINT
    print(json.dumps(summary, indent=2))
    return EXIT_DONE
