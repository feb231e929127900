"""The installed, unedited robomimic trained with the edits in memory: the edited copy's bits."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.configs import make_config, write_config
from tests.hosts import Host, copy_host, installed_package, require_clean, run, torchrun
from tests.patches.support import snapshot
from tests.runs import checkpoint_differences, checkpoints, run_directory

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

SIZES = ("--with", "unet_config")
"""The installed host's net has 67 million parameters unless its config's sizes reach it."""


def config_for(folder: Path, dataset: Path) -> Path:
    changes = {"train": {"num_epochs": 1}}
    config = make_config("diffusion_policy", dataset, folder / "runs", changes)
    return write_config(folder / "config.json", config)


def byte_code(package: Path) -> dict[Path, bytes]:
    names = ("train.", "train_rlds.", "train_utils.", "torch_utils.", "diffusion_policy.")
    return {
        path: path.read_bytes() for path in package.rglob("*.pyc") if path.name.startswith(names)
    }


def test_two_ranks_give_the_edited_copys_checkpoint(low_dim_dataset: Path, tmp_path: Path) -> None:
    installed = installed_package()
    before, compiled = snapshot(installed), byte_code(installed)
    memory, file = tmp_path / "memory", tmp_path / "file"
    memory.mkdir(), file.mkdir()
    arguments = ("run", *SIZES, "robomimic.scripts.train_rlds")
    config = config_for(memory, low_dim_dataset)
    job = ("robomimic_ddp", *arguments, f"load_from={config}")
    require_clean(torchrun(Host(memory), *job))
    assert snapshot(installed) == before and byte_code(installed) == compiled
    assert not (installed / "scripts" / "train_rlds.py").exists()

    host = copy_host(tmp_path / "copy", small=False)
    edit = (sys.executable, "-m", "robomimic_ddp", "apply", *SIZES, host.package)
    require_clean(run(None, *edit))
    config = config_for(file, low_dim_dataset)
    require_clean(torchrun(host, "robomimic.scripts.train_rlds", f"load_from={config}"))
    one, two = (checkpoints(run_directory(folder / "runs")) for folder in (memory, file))
    assert one.keys() == two.keys() and len(one) == 3
    for name in one:
        assert checkpoint_differences(one[name], two[name]) == []
