"""`robomimic-ddp bench`: its arguments, its table, and what it refuses before anything starts."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from robomimic_ddp import cli
from robomimic_ddp.commands.bench import command, report
from robomimic_ddp.commands.launch.arguments import Settings
from robomimic_ddp.errors import LaunchError
from tests.hosts import ROOT, environment


def log(samples, data=0.1, gradients=None, steps=10.0):
    shares = {} if gradients is None else {"Time_Communication_Share": gradients}
    rates = {"Time_Samples_Per_Second": samples, "Time_Steps_Per_Second": steps}
    return {**rates, "Time_Data_Wait_Share": data, **shares}


def test_speed_up_is_within_rounds_and_rows_are_medians():
    """The machine is half as fast in the second round."""
    one, two = report.compare(
        {
            1: [[log(100), log(101), log(102)], [log(50)]],
            2: [[log(180, 0.2, 0.1, 5.0)], [log(90, 0.4, 0.3, 4.0), log(91, 0.4, 0.3, 4.0)]],
        }
    )
    assert (one.speed_up, one.efficiency, one.gradient_wait) == (1, 1, None)
    assert two.speed_up == pytest.approx((180 / 101 + 90.5 / 50) / 2)
    assert two.efficiency == pytest.approx(two.speed_up / 2)
    assert (two.samples_per_second, two.step_seconds) == (pytest.approx(135.25), 0.25)
    assert (two.data_wait, two.gradient_wait) == (0.4, 0.3)


def test_the_table():
    speeds = list(report.compare({2: [[log(100)]], 4: [[log(150, 0.25, 0.125)]]}))
    titles, *rows = report.lines(speeds)
    assert titles.split("  ")[0] == "ranks" and titles.endswith("for gradients")
    assert rows[0].split() == ["2", "100.0", "1.00", "100%", "100.0", "ms", "10%", "-"]
    assert rows[1].split() == ["4", "150.0", "1.50", "75%", "100.0", "ms", "25%", "12%"]


BAD_ARGUMENTS = {
    "--ranks 0": "0: expected numbers of ranks from 1",
    "--ranks 2,2": "each once",
}


@pytest.mark.bad_input
@pytest.mark.parametrize("words", BAD_ARGUMENTS)
def test_bad_arguments(words, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", "--config", "cfg.json", *words.split()])
    assert ended.value.code == 2 and BAD_ARGUMENTS[words] in capsys.readouterr().err


@pytest.fixture
def config(tmp_path):
    (tmp_path / "cfg.json").write_text('{"algo_name": "bc"}')
    return str(tmp_path / "cfg.json")


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "word, message",
    [("train.num_epochs=3", "bench sets train.num_epochs itself"), ("x", "expected KEY=VALUE")],
)
def test_bad_settings(word, message, config, capsys):
    assert cli.main(["bench", word, "--config", config, "--ranks", "1"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.bad_input
def test_a_missing_config_and_a_host_that_is_not_patched(config, tmp_path, capsys):
    assert cli.main(["bench", "--config", str(tmp_path / "no.json"), "--ranks", "1"]) == 1
    assert "no such file" in capsys.readouterr().err
    assert cli.main(["bench", "--config", config, "--ranks", "1"]) == 1
    assert "run `robomimic-ddp apply` on it" in capsys.readouterr().err


@pytest.mark.bad_input
def test_a_training_that_fails_shows_its_last_lines(tmp_path, monkeypatch, capsys):
    fails = [sys.executable, "-c", "print(*range(40), sep='\\n'); raise SystemExit(3)"]
    job = SimpleNamespace(quiet=fails, added={})
    monkeypatch.setattr(command.torchrun, "command", lambda *_: job)
    with pytest.raises(LaunchError, match="on 1 rank ended with exit code 3, so no speed was"):
        command.train(Settings(config="cfg.json", gpus=1), tmp_path / "run")
    assert capsys.readouterr().err.split() == [str(number) for number in range(25, 40)]


@pytest.mark.bad_input
def test_more_ranks_than_the_machine_takes(config, monkeypatch, capsys):
    monkeypatch.setattr(command.devices, "visible_devices", lambda variables: ["0", "1"])
    assert cli.main(["bench", "--config", config, "--ranks", "1,2,4"]) == 2
    assert "--ranks 4: 2 GPU(s) are visible" in capsys.readouterr().err
    monkeypatch.setattr(command.devices, "visible_devices", lambda variables: [])
    assert cli.main(["bench", "--config", config, "--ranks", "1,99999"]) == 2
    assert "--ranks 99999: no GPU is visible" in capsys.readouterr().err


def test_arguments_are_checked_before_torch_is_imported(config):
    text = (
        "import sys; from robomimic_ddp import cli; cli.main(sys.argv[1:]); "
        "assert 'torch' not in sys.modules"
    )
    words = ["bench", "--config", config, "--ranks", "1"]
    done = subprocess.run(
        [sys.executable, "-c", text, *words], cwd=ROOT, env=environment(None), text=True
    )
    assert done.returncode == 0
