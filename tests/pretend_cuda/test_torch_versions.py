"""What `ddp.compile` makes of the diffusion policy's nets with other releases of torch.

Each release is installed by pip (5 GB) into a folder that stands before the installed one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts import ROOT
from tests.pretend_cuda import build
from tests.pretend_cuda.test_compiled import require_whole_graphs

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(2400)]

TORCHVISION = {"2.4.1": "0.19.1", "2.6.0": "0.21.0", "2.8.0": "0.23.0", "2.10.0": "0.25.0"}
"""The release that each torch needs."""
BREAKS = {"2.6.0": ("issubset", "ObservationKeyToModalityDict")}
"""Words of the host, around what a net computes, that a torch does not compile."""

WHY_NOT = "from robomimic_ddp.training.step import compile; print(compile.why_not('cpu', None))"


@pytest.fixture(params=TORCHVISION)
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The version of another torch, and a folder with it and what it needs."""
    folder, version = tmp_path / "packages", request.param
    words = ["--quiet", "--no-compile", "--target", folder, f"torch=={version}"]
    pip = [sys.executable, "-m", "pip", "install", *words, f"torchvision=={TORCHVISION[version]}"]
    done = subprocess.run(pip, capture_output=True, text=True)
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip(f"torch {version} has no wheel for this Python")
    assert done.returncode == 0, done.stderr
    yield version, folder
    shutil.rmtree(folder)


def test_two_nets_are_whole_graphs(release, host_copy, config_file, tmp_path):
    version, packages = release
    paths = os.pathsep.join(map(str, [packages, host_copy.folder, ROOT]))
    if version.startswith("2.4."):
        why = [sys.executable, "-c", WHY_NOT]
        done = subprocess.run(why, env={**os.environ, "PYTHONPATH": paths}, capture_output=True)
        assert done.stdout.startswith(f"torch {version}".encode()), done
        assert b"is too old for it" in done.stdout
        return
    if build.why_not(packages):
        pytest.skip(build.why_not(packages))
    (tmp_path / "cuda").mkdir()
    build.build(tmp_path / "cuda", packages)
    gpus = {**build.variables(tmp_path / "cuda"), "PRETEND_CUDA_GPUS": "2", "PYTHONPATH": paths}
    config = config_file("diffusion_policy_crops", {"train": {"cuda": True}})
    require_whole_graphs(
        gpus, host_copy, config, tmp_path, "reduce-overhead", breaks=BREAKS.get(version, ())
    )
