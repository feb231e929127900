"""Builds the torchrun command and its environment from the launcher's settings."""

from __future__ import annotations

import importlib.util
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from robomimic_ddp.commands.evaluate import workers
from robomimic_ddp.commands.launch import devices
from robomimic_ddp.commands.launch.arguments import Settings
from robomimic_ddp.config import machine, options, paths
from robomimic_ddp.config.host import json_config
from robomimic_ddp.config.host.dotlist import OPTIONS, parse_dotlist
from robomimic_ddp.config.host.json_config import read_json
from robomimic_ddp.config.launch_env import OPTION_PREFIX, option_texts
from robomimic_ddp.distributed import rendezvous

SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1")
"""Signals that torchrun forwards to its ranks: its defaults, and Slurm's warning SIGUSR1."""


@dataclass(frozen=True)
class Command:
    """A torchrun command. ranks: processes on this node; added: environment variables to set;
    evaluation: the arguments of `evaluate`, which follows the run, if any.
    """

    ranks: int
    words: list[str]
    added: dict[str, str]
    evaluation: tuple[str, ...] = ()

    @property
    def quiet(self) -> list[str]:
        """The same command without torchrun's traceback, see quiet_torchrun."""
        python, _, _, *words = self.words
        return [python, "-m", "robomimic_ddp.commands.launch.quiet_torchrun", *words]


def command(settings: Settings, variables: Mapping[str, str]) -> Command:
    """Return the command, with the options that flags set. The learning rate is scaled linearly
    unless something else is chosen. Raises UsageError, ConfigError, OptionError.
    """
    ranks = devices.ranks(settings.gpus, variables)
    signals, added = signal_settings()
    if settings.resume:
        added[f"{OPTION_PREFIX}RESUME"] = "true"
    if settings.lr_scaling or _options(settings, variables).sources["lr_scaling"] == "default":
        added[f"{OPTION_PREFIX}LR_SCALING"] = settings.lr_scaling or "linear"
    words = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={ranks}"]
    words += [*_rendezvous(settings, variables), *signals]
    if settings.max_restarts:
        words.append(f"--max_restarts={settings.max_restarts}")
        if settings.nodes > 1:
            # A node that replaces another would wait for keys of torchrun's first round
            # (https://github.com/pytorch/pytorch/issues/135712).
            added["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    path = str(paths.expanded(settings.config))
    config = [f"load_from={path}"] if settings.takes_dot_list else ["--config", path]
    words += ["-m", settings.module, *config, *settings.overrides]
    evaluation: tuple[str, ...] = ()
    if settings.evaluate:
        added[f"{OPTION_PREFIX}ROLLOUTS"] = "evaluate"
        free = ",".join(devices.visible_devices(variables)[ranks:])
        count = workers.most_workers(machine.usable_cores() - ranks)
        evaluation = ("--workers", str(count), "--gpus", free)
    return Command(ranks, words, added, evaluation)


def _options(settings: Settings, variables: Mapping[str, str]) -> options.ResolvedOptions:
    """Return the options of the ranks without the launcher's flags."""
    words = [word for word in settings.overrides if word.startswith(OPTIONS) and "=" in word]
    if _is_left_to_host(settings):
        section = json_config.read_plain(settings.config).get("ddp")
    else:
        section = read_json(settings.config, "--config ").get("ddp")
    section = section if isinstance(section, dict) else {}  # the ranks refuse anything else
    return options.resolve(parse_dotlist(words).get("ddp", {}), option_texts(variables), section)


def _is_left_to_host(settings: Settings) -> bool:
    return not settings.takes_dot_list and json_config.is_left_to_host(settings.config)


def _rendezvous(settings: Settings, variables: Mapping[str, str]) -> list[str]:
    # train_slurm.sbatch gives an address on one node, too: by its id a requeued job finds its run.
    job = variables.get("SLURM_JOB_ID") if settings.rdzv else None
    name = [f"--rdzv_id={job}"] if job else []
    if settings.nodes > 1:
        meet = ["--rdzv_backend=c10d", f"--rdzv_endpoint={settings.rdzv}"]
        return [f"--nnodes={settings.nodes}", *meet, *name]
    if settings.port is not None:
        return ["--master_addr=127.0.0.1", f"--master_port={settings.port}", *name]
    return rendezvous.on_this_machine(job)


def signal_settings() -> tuple[list[str], dict[str, str]]:
    """Return the flag, or the environment variable of an older torchrun, that lets torchrun forward
    SIGNALS: without SIGHUP under nohup, where torchrun would end.
    """
    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    names = ",".join(name for name in SIGNALS if name != "SIGHUP" or not is_ignored)
    if _torchrun_knows("signals_to_handle"):
        return [f"--signals_to_handle={names}"], {}
    return [], {"TORCHELASTIC_SIGNALS_TO_HANDLE": names}


def _torchrun_knows(flag: str) -> bool:
    """Return whether torchrun has a flag, without importing torch, which takes seconds."""
    package = importlib.util.find_spec("torch")
    source = Path(package.origin).parent / "distributed" / "run.py"
    return flag in source.read_text(encoding="utf-8")
