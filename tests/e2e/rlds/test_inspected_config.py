"""From a dataset of another shape to a trained policy: inspect-data's own config, one process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.hosts import FINISHED, Host, python, require_clean, run
from tests.runs import load

pytest.importorskip("tensorflow_datasets", reason="the extra [rlds] is not installed")
pytest.importorskip("transformers")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.mark.slow
def test_the_config_that_is_written_trains(host_copy: Host, tmp_path: Path) -> None:
    """With the instruction's embedding added, as the guide says."""
    from tests.rlds.language_model import WIDTH, make_model
    from tests.rlds.other_shapes import write_bridge

    folder, model = write_bridge(tmp_path / "data"), make_model(tmp_path / "Model")
    command = [sys.executable, "-m", "robomimic_ddp", "inspect-data", folder.parent]
    require_clean(run(None, *command, "-o", tmp_path / "out"))
    config = tmp_path / "out" / "config.json"
    states = json.loads(config.read_text())["observation"]["modalities"]["obs"]["low_dim"]
    result = python(
        host_copy, "robomimic.scripts.train_rlds", f"load_from={config}", "train.batch_size=4",
        "train.num_epochs=1", "experiment.epoch_every_n_steps=2",
        "experiment.save.every_n_epochs=1",
        "train.cuda=false", f"train.data_cache_dir={tmp_path / 'cache'}",
        f"ddp.language_model={model}",
        f"observation.modalities.obs.low_dim=[{','.join([*states, 'lang_emb'])}]",
    )  # fmt: skip
    require_clean(result)
    assert result.stdout.count(FINISHED) == 1
    (directory,) = (tmp_path / "out" / "runs" / "bridge_like").iterdir()
    kept = load(directory / "last.pth")
    assert kept["shape_metadata"]["ac_dim"] == 7
    assert list(kept["shape_metadata"]["all_shapes"]["lang_emb"]) == [WIDTH]
    assert json.loads(kept["config"])["train"]["rlds_schema"] == "bridge"
    assert list((tmp_path / "cache").glob("language-*.npz"))
