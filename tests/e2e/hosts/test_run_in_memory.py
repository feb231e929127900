"""An unedited robomimic trained with the edits in memory: the edited copy's bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.configs import make_config, write_config
from tests.hosts import Host, copy_host, require_clean, torchrun
from tests.patches.support import snapshot
from tests.runs import checkpoint_differences, checkpoints, run_directory

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


def config_for(folder: Path, dataset: Path) -> Path:
    changes = {"train": {"num_epochs": 1}}
    config = make_config("diffusion_policy", dataset, folder / "runs", changes)
    return write_config(folder / "config.json", config)


EDITED = ("train.", "train_rlds.", "train_utils.", "torch_utils.", "diffusion_policy.")
"""How files of the host that are edited begin."""


def test_two_ranks_give_the_edited_copys_checkpoint(
    host_copy: Host, low_dim_dataset: Path, tmp_path: Path
) -> None:
    """With an edit more, which has no effect: the sizes in the config are the net's anyway."""
    plain = copy_host(tmp_path / "plain")
    package = plain.package
    before = snapshot(package)
    directories = []
    for host, words in (
        (plain, ("robomimic_ddp", "run", "--with", "unet_config", "robomimic.scripts.train_rlds")),
        (host_copy, ("robomimic.scripts.train_rlds",)),
    ):
        folder = tmp_path / str(len(directories))
        folder.mkdir()
        config = config_for(folder, low_dim_dataset)
        require_clean(torchrun(host, *words, f"load_from={config}"))
        directories.append(run_directory(folder / "runs"))
    assert snapshot(package) == before
    compiled = {path.name for path in package.rglob("*.pyc")}
    assert compiled and not [name for name in compiled if name.startswith(EDITED)]
    assert not (package / "scripts" / "train_rlds.py").exists()
    one, two = map(checkpoints, directories)
    assert one.keys() == two.keys() and len(one) == 3
    for name in one:
        assert checkpoint_differences(one[name], two[name]) == []
