"""Settings -> the torchrun command and its environment."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robomimic_ddp.commands.launch.arguments import DOT_LIST_MODULE, Settings
from robomimic_ddp.commands.launch.devices import Devices
from robomimic_ddp.config import paths
from robomimic_ddp.config.env import OPTION_PREFIX
from robomimic_ddp.config.json_config import read_json
from robomimic_ddp.distributed import rendezvous

SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"
"""Signals that torchrun forwards to its ranks: its default, and Slurm's warning."""


def config_of(settings: Settings) -> dict[str, Any]:
    """Return the settings in the config file. Raises ConfigError if it cannot be read."""
    return read_json(settings.config, "--config ")


def passes_on_signals() -> tuple[list[str], dict[str, str]]:
    """Return the flag, or for older torchrun the variable, that has SIGNALS forwarded, without the
    seconds that an import of torch takes.
    """
    package = importlib.util.find_spec("torch")
    source = Path(package.origin).parent / "distributed" / "run.py"
    if "signals_to_handle" in source.read_text(encoding="utf-8"):
        return [f"--signals_to_handle={SIGNALS}"], {}
    return [], {"TORCHELASTIC_SIGNALS_TO_HANDLE": SIGNALS}


def command(
    settings: Settings, chosen: Devices, variables: Mapping[str, str]
) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment variables that it needs in addition."""
    signals, added = passes_on_signals()
    added = {**_option_variables(settings, variables), **added}
    if chosen.visible is not None:
        added["CUDA_VISIBLE_DEVICES"] = chosen.visible
    words = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={chosen.ranks}"]
    words += [*_rendezvous(settings, variables), *signals]
    if settings.max_restarts:
        words.append(f"--max_restarts={settings.max_restarts}")
    path = str(paths.expanded(settings.config))
    config = [f"load_from={path}"] if settings.takes_dot_list else ["--config", path]
    return [*words, "-m", settings.module, *config, *settings.words], added


def quiet(command: Sequence[str]) -> list[str]:
    """Return the command as the launcher runs it: the same torchrun, see quiet_torchrun."""
    return [command[0], "-m", "robomimic_ddp.commands.launch.quiet_torchrun", *command[3:]]


def _option_variables(settings: Settings, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the options that launch sets: its flags, and linear scaling where neither the config
    nor a word nor a variable has another rule.
    """
    added = {f"{OPTION_PREFIX}RESUME": "true"} if settings.resume else {}
    rule, section = f"{OPTION_PREFIX}LR_SCALING", config_of(settings).get("ddp")
    has_rule = (
        rule in variables
        or (isinstance(section, dict) and "lr_scaling" in section)
        or any(word.startswith("ddp.lr_scaling=") for word in settings.words)
    )
    if settings.lr_scaling or not has_rule:
        added[rule] = settings.lr_scaling or "linear"
    return added


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


def _entry_file(settings: Settings) -> Path | None:
    """Return the file of the module to train with, which may not exist, or None if it is not in a
    host. Found as a rank finds it, without an import.
    """
    package, *inner = settings.module.split(".")
    spec = importlib.util.find_spec(package)
    folder = next(map(Path, (spec and spec.submodule_search_locations) or ()), None)
    if folder is None or not (folder / "utils" / "train_utils.py").is_file():
        return None
    return folder.joinpath(*inner).with_suffix(".py")


def entry_text(settings: Settings) -> str:
    """Return the source text of the module to train with; "" if it is not in a host."""
    file = _entry_file(settings)
    is_there = file is not None and file.is_file()
    return file.read_text(encoding="utf-8", errors="replace") if is_there else ""


def unpatched(settings: Settings) -> str:
    """Return why the host's train script cannot run on several ranks, or "". Reads the file without
    an import; a module that does not train, or is not in a host, passes.
    """
    file, text = _entry_file(settings), entry_text(settings)
    if file is None:
        return ""
    if "def train(" in text and "robomimic_ddp" not in text:
        why = f"{file} is not patched: every rank would train a separate model"
    elif not file.is_file() and settings.module == DOT_LIST_MODULE:
        why = f"there is no {file}, which robomimic-ddp apply adds to the host"
    else:
        return ""
    return (
        f"{why}. Python finds this robomimic first: run `robomimic-ddp apply` on it, or start in "
        "the folder of the host that is patched."
    )
