"""What the launcher refuses before torchrun starts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.hosts import ROOT, environment
from tests.patches.support import write_host


@pytest.mark.bad_input
def test_the_host_is_the_one_that_ranks_import(config_file, host_copy, tmp_path):
    """`python -m` looks in the current folder first, and a console script does not."""
    script = {"scripts/train_rlds.py": "def train(config): 0"}
    write_host(tmp_path, files={"__init__.py": "", "utils/train_utils.py": "", **script})
    script = tmp_path / "bin" / "robomimic-ddp"
    script.parent.mkdir()
    text = "import sys\nfrom robomimic_ddp import cli\nsys.argv.insert(1, 'launch')\n"
    script.write_text(f"{text}sys.exit(cli.main())\n")
    folders = os.pathsep.join(map(str, [host_copy.folder, ROOT]))
    done = subprocess.run(
        [sys.executable, str(script), "--config", str(config_file("diffusion_policy")), "--gpus=2"],
        env=environment(None, {"PYTHONPATH": folders}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and "is not patched" in done.stderr, done
