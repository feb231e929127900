"""Settings -> the torchrun command and its environment."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robomimic_ddp.commands.launch import devices
from robomimic_ddp.commands.launch.arguments import DOT_LIST_MODULE, Settings
from robomimic_ddp.config import options, paths
from robomimic_ddp.config.dotlist import OPTIONS, parse_dotlist
from robomimic_ddp.config.env import OPTION_PREFIX, option_texts
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


def command(settings: Settings, variables: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment variables that it needs in addition: the options that
    flags set, and linear scaling of the learning rate where nothing else is chosen.
    """
    chosen = devices.choose(settings.gpus, variables)
    chooses_rule = _options(settings, variables).sources["lr_scaling"] != "default"
    signals, added = passes_on_signals()
    if settings.resume:
        added[f"{OPTION_PREFIX}RESUME"] = "true"
    if settings.lr_scaling or not chooses_rule:
        added[f"{OPTION_PREFIX}LR_SCALING"] = settings.lr_scaling or "linear"
    if chosen.visible is not None:
        added["CUDA_VISIBLE_DEVICES"] = chosen.visible
    words = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={chosen.ranks}"]
    words += [*_rendezvous(settings, variables), *signals]
    if settings.max_restarts:
        words.append(f"--max_restarts={settings.max_restarts}")
    path = str(paths.expanded(settings.config))
    config = [f"load_from={path}"] if settings.takes_dot_list else ["--config", path]
    return [*words, "-m", settings.module, *config, *settings.overrides], added


def quiet(command: Sequence[str]) -> list[str]:
    """Return the command as the launcher runs it: the same torchrun, see quiet_torchrun."""
    return [command[0], "-m", "robomimic_ddp.commands.launch.quiet_torchrun", *command[3:]]


def _options(settings: Settings, variables: Mapping[str, str]) -> options.ResolvedOptions:
    """Return the options of the ranks but for the launcher's flags. Raises OptionError."""
    words = [word for word in settings.overrides if word.startswith(OPTIONS) and "=" in word]
    section = config_of(settings).get("ddp")
    section = section if isinstance(section, dict) else {}  # else the ranks refuse it
    return options.resolve(parse_dotlist(words).get("ddp", {}), option_texts(variables), section)


def _rendezvous(settings: Settings, variables: Mapping[str, str]) -> list[str]:
    if settings.nodes > 1:
        words = [f"--nnodes={settings.nodes}", "--rdzv_backend=c10d"]
        words.append(f"--rdzv_endpoint={settings.rdzv}")
        job = variables.get("SLURM_JOB_ID")
        return [*words, f"--rdzv_id={job}"] if job else words
    if settings.port is not None:
        return ["--master_addr=127.0.0.1", f"--master_port={settings.port}"]
    return rendezvous.on_this_machine()


def entry(settings: Settings) -> tuple[Path | None, str]:
    """Return the file of the module to train with, None if it is not in a host, and its source
    text, "" if there is none. Found as a rank finds it, without an import.
    """
    package, *inner = settings.module.split(".")
    spec = importlib.util.find_spec(package)
    folder = next(map(Path, (spec and spec.submodule_search_locations) or ()), None)
    if folder is None or not (folder / "utils" / "train_utils.py").is_file():
        return None, ""
    file = folder.joinpath(*inner).with_suffix(".py")
    return file, file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def unpatched(settings: Settings) -> str:
    """Return why the host's train script cannot run on several ranks, or "". Reads the file without
    an import; a module that does not train, or is not in a host, passes.
    """
    file, text = entry(settings)
    if "def train(" in text and "robomimic_ddp" not in text:
        why = f"{file} is not patched: every rank would train a separate model"
    elif file and not file.is_file() and settings.module == DOT_LIST_MODULE:
        why = f"there is no {file}, which robomimic-ddp apply adds to the host"
    else:
        return ""
    return (
        f"{why}. Python finds this robomimic first: run `robomimic-ddp apply` on it, or start in "
        "the folder of the host that is patched."
    )
