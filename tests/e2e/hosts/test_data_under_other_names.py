"""A host that leaves `train.data` empty, and names its datasets with other keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.configs import make_config, write_config
from tests.hosts import Host, apply, copy_host, require_finished, torchrun

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
READS_PRIOR = """    with config.values_unlocked():
        config.train.data = [{"path": config.train.data_prior}]
"""


def insert(path: Path, before: str, text: str) -> None:
    """Writes `text` in front of the only `before` of a file."""
    content = path.read_text()
    assert content.count(before) == 1
    path.write_text(content.replace(before, text + before))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    host = copy_host(tmp_path / "host")
    config = host.package / "config/base_config.py"
    insert(config, "        self.train.data = ", "        self.train.data_prior = None\n")
    insert(host.package / "scripts/train.py", "    # first set seeds\n", READS_PRIOR)
    return apply(host)


def test_it_trains_on_two_ranks(host: Host, low_dim_dataset: Path, tmp_path: Path) -> None:
    changes = {"train": {"data": None, "data_prior": str(low_dim_dataset)}}
    config = make_config("bc", low_dim_dataset, tmp_path / "runs", changes)
    file = write_config(tmp_path / "config.json", config)
    result = torchrun(host, "robomimic.scripts.train", "--config", file)
    require_finished(result)
    assert "verified, epoch 2: weights" in result.stdout, result
