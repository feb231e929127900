"""What `ddp.compile` makes of the diffusion policy's nets with other releases of torch.

Each release is installed by pip (5 GB) into a folder that stands before the installed one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.hosts import ROOT, run
from tests.pretend_cuda import build
from tests.pretend_cuda.whole_graphs import require_whole_graphs

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(2400)]

TOO_OLD = "2.4.1"
TORCHVISION = {TOO_OLD: "0.19.1", "2.6.0": "0.21.0", "2.8.0": "0.23.0", "2.10.0": "0.25.0"}
"""The release that each torch needs."""
BREAKS = {"2.6.0": ("issubset", "ObservationKeyToModalityDict"), "2.8.0": (), "2.10.0": ()}
"""Words of the host, around what a net computes, that a torch does not compile."""
WHY_NOT = "from robomimic_ddp.training.step import compile; print(compile.why_not('cpu', None))"


@pytest.fixture
def install(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """`install(version)`: a folder with that torch and what it needs."""
    folder = tmp_path / "packages"

    def torch_in_folder(version: str) -> Path:
        words = [f"torch=={version}", f"torchvision=={TORCHVISION[version]}", "--target", folder]
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", *words]
        subprocess.run(pip, check=True)
        return folder

    yield torch_in_folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="torch 2.4 has no wheel for this Python")
def test_a_torch_whose_compiler_fails_is_too_old(install):
    paths = os.pathsep.join(map(str, [install(TOO_OLD), ROOT]))
    result = run(None, sys.executable, "-c", WHY_NOT, added={"PYTHONPATH": paths})
    assert result.stdout.startswith(f"torch {TOO_OLD}"), result
    assert "is too old for it" in result.stdout


@pytest.mark.parametrize("version", BREAKS)
def test_two_nets_are_whole_graphs(version, install, host_copy, config_file, tmp_path):
    packages = install(version)
    if build.why_not(packages):
        pytest.skip(build.why_not(packages))
    (tmp_path / "cuda").mkdir()
    build.build(tmp_path / "cuda", packages)
    paths = os.pathsep.join(map(str, [packages, host_copy.folder, ROOT]))
    gpus = {**build.variables(tmp_path / "cuda"), "PRETEND_CUDA_GPUS": "2", "PYTHONPATH": paths}
    config = config_file("diffusion_policy_crops", {"train": {"cuda": True}})
    breaks = BREAKS[version]
    require_whole_graphs(gpus, host_copy, config, tmp_path, "reduce-overhead", breaks=breaks)
