"""`ddp.compile` with torch's own compiler for the CPU, in one process that accumulates: a run that
was stopped ends as the uninterrupted one to the bit, and leaves files that need no compiler.

That it trains as without a compiler: tests/parity/test_speed_options.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from robomimic_ddp.checkpoint import STATE
from robomimic_ddp.checkpoint.state_file import read_file
from robomimic_ddp.errors import EXIT_STOPPED
from robomimic_ddp.training.step import compile
from tests.configs import frozen_from, make_config, write_config
from tests.hosts import Host, Result, python, require_clean, require_finished
from tests.runs import newest, require_equal_weights, run_directory, state_differences
from tests.versions import NEEDS_CALL_PLACE

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900), NEEDS_CALL_PLACE]
COMPILED = {"ddp": {"compile": "true", "accumulate": 2}}


def test_a_stopped_run_resumes_to_the_bit_and_its_files_need_no_compiler(
    host_copy: Host, plain_host: Host, low_dim_dataset: Path, tmp_path: Path
) -> None:
    if compile.why_not("cpu", None) is not None:
        pytest.skip(compile.why_not("cpu", None))

    def train(folder: Path, plan: str, *more: str) -> Result:
        folder.mkdir(exist_ok=True)
        config = make_config("diffusion_policy", low_dim_dataset, folder / "runs", COMPILED)
        file = write_config(folder / "config.json", config)
        words = (
            "tests.e2e.entries.killed_train",
            plan,
            folder / "happened",
            "--config",
            file,
            *more,
        )
        result = python(host_copy, *words, timeout=400)
        assert "compiled (true): training forward of 1 net(s)" in result.stdout, result
        return result

    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    require_finished(train(whole, "none"))
    result = train(stopped, "0@SIGUSR1:7")
    assert result.returncode == EXIT_STOPPED, result
    assert read_file(run_directory(stopped / "runs") / STATE)["inside"] is not None
    require_finished(train(stopped, "0@SIGUSR1:7", "--resume"))
    assert newest(whole)["steps"] == 6
    assert state_differences(newest(stopped), newest(whole)) == []

    source = run_directory(whole / "runs") / "last.pth"
    output = tmp_path / "runs"
    config = make_config("diffusion_policy", low_dim_dataset, output, frozen_from(source))
    file = write_config(tmp_path / "config.json", config)
    require_clean(python(plain_host, "robomimic.scripts.train", "--config", file))
    require_equal_weights(source, run_directory(output) / "last.pth")
