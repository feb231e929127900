"""Settings -> the torchrun command and its environment."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robomimic_ddp.commands.launch import devices
from robomimic_ddp.commands.launch.arguments import DOT_LIST_MODULE, Settings
from robomimic_ddp.config import paths
from robomimic_ddp.config.env import OPTION_PREFIX
from robomimic_ddp.config.json_config import read_json
from robomimic_ddp.distributed import rendezvous


def config_of(settings: Settings) -> dict[str, Any]:
    """The config file's settings. Raises ConfigError at every call if it cannot be read."""
    return read_json(settings.config, "--config ")


SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
"""Signals that torchrun forwards to its ranks: its default, and Slurm's warning."""


def passes_on_signals() -> tuple[list[str], dict[str, str]]:
    """The flag, or for older torchrun the variable, for SIGNALS. Importing torch takes seconds."""
    package = importlib.util.find_spec("torch")
    source = Path(package.origin).parent / "distributed" / "run.py"
    if "signals_to_handle" in source.read_text(encoding="utf-8"):
        return [f"--signals_to_handle={SIGNALS}"], {}
    return [], {"TORCHELASTIC_SIGNALS_TO_HANDLE": SIGNALS}


def option_layers(settings: Settings, variables: Mapping[str, str]) -> dict[str, str]:
    """Our options that the script sets, as variables; file and variables win over defaults."""
    section = config_of(settings).get("ddp")
    in_file = set(section) if isinstance(section, dict) else set()
    in_dot_list = {
        item.partition("=")[0][len("ddp.") :]
        for item in settings.overrides
        if item.startswith("ddp.")
    }
    wanted = {"lr_scaling": settings.lr_scaling, "batch": settings.batch}
    if settings.resume:
        wanted["resume"] = "true"
    added = {}
    for name, value in wanted.items():
        variable = OPTION_PREFIX + name.upper()
        asked = name in settings.given
        elsewhere = name in in_file | in_dot_list or variable in variables
        if asked or (name == "lr_scaling" and not elsewhere):
            added[variable] = value
    return added


def command(settings: Settings, variables: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """(the command, additional environment variables)."""
    chosen = devices.choose(settings.gpus, variables)
    added = option_layers(settings, variables)
    if chosen.visible is not None:
        added["CUDA_VISIBLE_DEVICES"] = chosen.visible
    words = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={chosen.ranks}"]
    words += _rendezvous(settings, variables)
    signals, variable = passes_on_signals()
    words += signals
    added.update(variable)
    if settings.max_restarts:
        words.append(f"--max_restarts={settings.max_restarts}")
    path = str(paths.expanded(settings.config))
    own = [f"load_from={path}"] if settings.takes_dot_list else ["--config", path]
    return [*words, "-m", settings.module, *own, *settings.overrides], added


def quiet(command: Sequence[str]) -> list[str]:
    """The command as the launcher runs it: the same torchrun, see quiet_torchrun."""
    return [command[0], "-m", "robomimic_ddp.commands.launch.quiet_torchrun", *command[3:]]


def _host_folder(settings: Settings) -> Path | None:
    """The package of the module, if it is a host: found as a rank finds it, without an import."""
    spec = importlib.util.find_spec(settings.module.partition(".")[0])
    folder = next(map(Path, (spec and spec.submodule_search_locations) or ()), None)
    is_host = folder is not None and (folder / "utils" / "train_utils.py").is_file()
    return folder if is_host else None


def _entry_file(settings: Settings, folder: Path) -> Path:
    return folder.joinpath(*settings.module.split(".")[1:]).with_suffix(".py")


def entry_text(settings: Settings) -> str:
    """The source text of the module to train with; "" if it is not in a host."""
    folder = _host_folder(settings)
    file = None if folder is None else _entry_file(settings, folder)
    is_there = file is not None and file.is_file()
    return file.read_text(encoding="utf-8", errors="replace") if is_there else ""


def unpatched(settings: Settings) -> str:
    """Why the host's train script cannot run on several ranks, or "". Reads the file without an
    import; a module that does not train, or is not in a host, passes.
    """
    folder = _host_folder(settings)
    if folder is None:
        return ""
    file = _entry_file(settings, folder)
    if file.is_file():
        text = entry_text(settings)
        if "robomimic_ddp" in text or "def train(" not in text:
            return ""
        why = f"{file} is not patched: every rank would train a separate model"
    elif settings.module == DOT_LIST_MODULE:
        why = f"there is no {file}, which robomimic-ddp apply adds to the host"
    else:
        return ""
    return (
        f"{why}. Python finds this robomimic first: run `robomimic-ddp apply` on it, or start in "
        "the folder of the host that is patched."
    )


def _rendezvous(settings: Settings, variables: Mapping[str, str]) -> list[str]:
    if settings.nodes == 1:
        if settings.port is None:
            return rendezvous.on_this_machine()
        return ["--master_addr=127.0.0.1", f"--master_port={settings.port}"]
    words = [f"--nnodes={settings.nodes}"]
    if settings.node_rank is not None:
        words.append(f"--node_rank={settings.node_rank}")
    words += ["--rdzv_backend=c10d", f"--rdzv_endpoint={settings.rdzv}"]
    if variables.get("SLURM_JOB_ID"):
        words.append(f"--rdzv_id={variables['SLURM_JOB_ID']}")
    return words
