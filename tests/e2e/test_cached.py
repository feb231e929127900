"""Real torchrun, two ranks, the edited host: a run with ddp.cache trains the same weights."""

from __future__ import annotations

import pytest

from tests.configs import make_config, make_rlds_config, write_config
from tests.hosts import require_clean, torchrun
from tests.runs import digests, load, run_directory

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("kind", ["rlds", "low_dim", None])
def test_the_weights_are_the_same(request, host_copy, tmp_path, kind):
    frames, trained = tmp_path / "frames", []
    for name, options in (("plain", {}), ("cached", {"ddp": {"cache": str(frames)}})):
        output, file = tmp_path / name, tmp_path / f"{name}.json"
        if kind == "rlds":
            changes = {"train": {"validation_fraction": 0.2, "batch_size": 2}, **options}
            data = request.getfixturevalue("demo_dataset")
            write_config(file, make_rlds_config(data, output, changes))
            words = ["tests.e2e.watched_rlds", tmp_path / f"{name}-reports", f"load_from={file}"]
        else:
            changes = {"train": {"hdf5_cache_mode": kind}, **options}
            data = request.getfixturevalue("image_dataset")
            write_config(file, make_config("diffusion_policy_images", data, output, changes))
            reports = tmp_path / f"{name}-reports"
            words = ["tests.e2e.watched_train", reports, "none", "--config", file]
        result = torchrun(host_copy, *words, timeout=280.0, cold=True)
        require_clean(result)
        assert ("; nothing is decoded" in result.stdout) == (name == "cached")
        trained.append(digests(load(run_directory(output) / "last.pth")["model"]["nets"]))
    assert trained[0] == trained[1]
    assert list(frames.glob("*.frames"))
