"""A small host to patch, and what tests of the edits do with hosts."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from robomimic_ddp.patches import engine, registry
from robomimic_ddp.patches.host import hosts
from robomimic_ddp.patches.outcomes import Examination

CHECKOUT = Path(__file__).resolve().parents[2]

SMALL_HOST = {
    "__init__.py": "",
    "algo/__init__.py": "",
    "algo/diffusion_policy.py": """import torch.nn as nn
import robomimic.utils.torch_utils as TorchUtils


def create(obs_encoder, noise_pred_net):
    return nn.ModuleDict({"obs_encoder": obs_encoder, "noise_pred_net": noise_pred_net})
""",
    "utils/__init__.py": "",
    "utils/train_utils.py": """import torch
import robomimic


def get_exp_dir(config):
    return input("overwrite? ")


def run_epoch(model, loader):
    return model(loader)


def save_model(model, path):
    torch.save(model, path)
""",
    "utils/torch_utils.py": """import torch


def get_torch_device(try_to_use_cuda):
    return torch.device("cuda:0")


def optimizer_from_optim_params(params, net):
    return params["learning_rate"]["initial"]
""",
    "scripts/train.py": """import os

from torch.utils.data import DataLoader

import robomimic.utils.train_utils as TrainUtils
from robomimic.config import config_factory


def train(config, device):
    train_loader = DataLoader(dataset=None)
    for epoch in range(3):
        TrainUtils.run_epoch(model=config, loader=train_loader)


def main(args):
    ext_cfg = {}
    config = config_factory(ext_cfg["algo_name"])
    try:
        train(config, device=None)
    except Exception as e:
        print(e)
""",
}


def write_host(
    root: Path,
    newline: str = "\n",
    package: str = "robomimic",
    files: Mapping[str, str] = SMALL_HOST,
) -> Path:
    """Writes a host of these `files` as the folder `package` under `root`; returns that folder."""
    for name, text in files.items():
        path = root / package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.replace("\n", newline).encode())
    return root / package


def examine(path: Path, only: Sequence[str] = (), **selection) -> Examination:
    """The host at `path`, examined with the fixers `only`, or `registry.select(**selection)`."""
    fixers = [registry.all_fixers()[name] for name in only] or registry.select(**selection)
    return engine.examine(hosts.find_host(str(path)), fixers)


def append(path: Path, text: str) -> None:
    """Adds `text` to the end of a file, which is made where there is none."""
    path.parent.mkdir(exist_ok=True)
    path.write_text((path.read_text() if path.exists() else "") + text)


def git(folder: Path, *arguments: str) -> str:
    """What git prints in `folder`, as an author of ours."""
    who = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    done = subprocess.run(
        ["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


def commit_all(folder: Path) -> Path:
    """Makes `folder` a repository whose one commit has all that is in it; returns it."""
    git(folder, "init", "-q", "-b", "main", ".")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "host")
    return folder


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Bytes and permission bits of every file under `folder`, caches and git's own left out."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        path.relative_to(folder).as_posix(): (path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
        for path in files
        if not {"__pycache__", ".git"} & set(path.parts)
    }


def run_command(
    *arguments: str, cwd: Path | None = None, paths: tuple[Path, ...] = ()
) -> subprocess.CompletedProcess:
    """`python -m robomimic_ddp` in a subprocess, with `paths` importable as well."""
    pythonpath = os.pathsep.join(str(path) for path in (*paths, CHECKOUT))
    return subprocess.run(
        [sys.executable, "-m", "robomimic_ddp", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": pythonpath},
        capture_output=True,
        text=True,
        timeout=100,
    )
