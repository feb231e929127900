"""`robomimic-ddp bench`: its rows, and that its variants compute the same."""

from __future__ import annotations

import json
import re
import statistics
from types import SimpleNamespace

import pytest
import torch

from robomimic_ddp import cli, env
from robomimic_ddp.bench import beginning, every_option, profiling, ranks, rollouts, step, step_rows
from robomimic_ddp.errors import ConfigError
from robomimic_ddp.options import resolve
from tests.versions import offered

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
KEYS = {
    *("variant", "world", "options", "steps_per_second", "samples_per_second", "peak_rss_mb"),
    *("comm_share", "parameters", "cpu_seconds_per_step"),
}


@pytest.mark.slow
def test_a_round(tmp_path, capsys, monkeypatch):
    kept = []
    measure = step.measure
    monkeypatch.setattr(step, "measure", lambda *given: kept.append(measure(*given)) or kept[0])
    file = tmp_path / "rows.json"
    assert cli.main(["bench", "step", "--rounds", "1", "--batch", "2", "--json", str(file)]) == 0
    rows = json.loads(file.read_text())
    assert [row["variant"] for row in rows] == ["host", "ours", "ours"]
    assert [row["options"].get("preset") for row in rows] == [None, "safe", "fast"]
    assert all(set(row) == KEYS and row["world"] == 1 for row in rows)
    assert {row["parameters"] for row in rows} == {rows[0]["parameters"]}
    for row in rows:
        assert row["samples_per_second"] == pytest.approx(2 * row["steps_per_second"])
        assert row["peak_rss_mb"] > 100
    host, safe, ours = (kept[0][name].losses for name in step.VARIANTS)
    assert host == safe, "safe is the host's own arithmetic"
    assert ours == pytest.approx(host, rel=1e-4) and len(host) == 3
    text = capsys.readouterr().out
    assert "times the host's steps per second by the clock" in text and "M parameters" in text


@pytest.mark.slow
def test_several_ranks(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(ranks, "PACKAGES", {"accelerate": "no_such_package"})
    monkeypatch.setattr(ranks, "_LEAST_REPEATS", 1)
    monkeypatch.setattr(ranks, "_WARM_UP", 1)
    file = tmp_path / "rows.json"
    words = ["--ranks", "2", "--rounds", "1", "--batch", "2", "--down-dims", "16,32"]
    words += ["--beside", "host,tutorial_ddp,accelerate"]
    assert cli.main(["bench", "step", *words, "--json", str(file)]) == 0
    ours, host, tutorial, accelerate = json.loads(file.read_text())
    assert [row["variant"] for row in (ours, host, tutorial)] == ["ours", "host", "tutorial_ddp"]
    assert [row["world"] for row in (ours, host, tutorial)] == [2, 1, 2]
    assert accelerate["skipped"] == "no_such_package is not installed"
    for row in (ours, host, tutorial):
        assert set(row) >= KEYS and row["parameters"] == ours["parameters"] < 1e6
        assert row["samples_per_second"] == pytest.approx(
            2 * row["world"] * row["steps_per_second"]
        )
    parameters = ours["parameters"] * 4 / 1e6
    assert ours["tensor_mb"] == pytest.approx(
        {
            "parameters": parameters,
            "averaged copy": parameters,
            "gradients": parameters,
            "moments": 2 * parameters,
            "buckets": 0,
        },
        rel=0.01,
    )
    assert sum(ours["tensor_mb"].values()) <= 0.75 * sum(tutorial["tensor_mb"].values())
    assert 0 <= ours["comm_share"] < 1 and 0 < ours["reducing_share"] < 1
    assert host["comm_share"] == 0 and 0 <= tutorial["overlap"] <= 1
    assert tutorial["ours_step_time_over_its"]["pairs"] == 1
    text = capsys.readouterr().out
    assert "accelerate                 skipped" in text and "pip install" in text
    assert "tensor bytes of ours over two DDP nets with a deep copy: 0.7" in text
    assert "all-reduces lengthen a step by" in text


@pytest.mark.slow
def test_options_and_cameras_on_ranks(tmp_path, capsys, monkeypatch):
    """What `--all-options` does, with a few of its options."""
    powersgd = {"comm": "powersgd", "powersgd_start": "2"}
    many = {
        **{"accumulate": "2", "workers": "1", "persistent_workers": "true"},
        **offered({"channels_last": "true", "activation_checkpointing": "true"}),
        **powersgd,
    }
    refused = {**powersgd, "static_graph": "true"}
    monkeypatch.setattr(every_option, "OPTIONS", (refused, many))
    monkeypatch.setattr(ranks, "_LEAST_REPEATS", 1)
    monkeypatch.setattr(ranks, "_WARM_UP", 3)
    file = tmp_path / "rows.json"
    words = ["--all-options", "--rounds", "1", "--batch", "2", "--down-dims", "16,32"]
    assert cli.main(["bench", "step", *words, "--json", str(file)]) == 0
    ours, skipped, row = json.loads(file.read_text())
    assert (skipped["options"], row["options"]) == (refused, many)
    assert "does not go with ddp.static_graph=true" in skipped["skipped"]
    assert all(one["world"] == 2 and one["steps_per_second"] > 0 for one in (ours, row))
    samples = row["samples_per_second"] / row["steps_per_second"]
    assert samples == pytest.approx(8), "two micro-batches of 2, on 2 ranks"
    assert row["sent_mb"] < ours["sent_mb"] / 2
    text = capsys.readouterr().out
    assert re.search(r"static_graph=true +skipped: a rank of ours", text)
    assert "powersgd_start=2, which has 4 samples on each rank" in text


def test_every_option_is_one_of_ours():
    for chosen in every_option.OPTIONS:
        resolve(command_line=chosen)
    of_speed = {"precision", "accumulate", "compile", "channels_last", "static_graph", "workers"}
    of_speed |= {"gradient_as_bucket_view", "bucket_mb", "buffer_sync", "comm", "prefetch"}
    of_speed |= {"persistent_workers", "activation_checkpointing", "preset"}
    assert {name for chosen in every_option.OPTIONS for name in chosen} >= of_speed


@pytest.mark.slow
@pytest.mark.skipif(env.usable_cores() < 2, reason="two ranks want a core each")
def test_rollouts_on_ranks_with_a_core_each(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(rollouts, "EPISODES", 1)
    monkeypatch.setattr(rollouts, "HORIZON", 3)
    file = tmp_path / "rows.json"
    words = ["--rollouts", "--rounds", "2", "--down-dims", "16,32", "--json", str(file)]
    assert cli.main(["bench", "step", *words]) == 0
    one, two = json.loads(file.read_text())
    assert (one["world"], two["world"]) == (1, 2)
    for row in (one, two):
        assert row["env_steps_per_second"] == pytest.approx(3 * row["episodes_per_second"])
    assert two["episodes_of_ranks"] == [rollouts.EPISODES] * 2, "each rank has half of them"
    times = two["times_one_rank"]
    assert 0 < times["low"] <= times["median"] <= times["high"] and times["rounds"] == 2
    assert "rollouts on 2 ranks: " in capsys.readouterr().out


@pytest.mark.slow
def test_start_up(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(beginning, "_WARM_UP", 0)
    file = tmp_path / "rows.json"
    words = ["--start-up", "--rounds", "1", "--down-dims", "16,32", "--json", str(file)]
    assert cli.main(["bench", "step", *words]) == 0
    rows = json.loads(file.read_text())
    seconds = {row["part"]: row["seconds"] for row in rows}
    assert all(seconds[name] > 0 for name in seconds if name != beginning.ADDED)
    added = seconds[beginning.ALL_OF_OURS] - seconds[beginning.HOSTS_OWN]
    assert seconds[beginning.ADDED] == pytest.approx(added)
    text = capsys.readouterr().out
    assert all(name in text for name in (*seconds, "with 2 ranks"))
    in_time = [row["seconds"] <= row["target"] for row in rows if row["target"]]
    assert re.findall(r"\((reached|missed)\)", text) == [
        "reached" if one else "missed" for one in in_time
    ]


def test_one_rank_with_a_group():
    """What `--device cuda` measures as "NCCL", over gloo."""
    variants = {"host": None, "group": {"mode": "ddp"}}
    found = step.measure(step.Job(2, 1, (16, 32), cameras=1, pixels=64), 1, variants)
    assert found["group"].losses == pytest.approx(found["host"].losses, rel=1e-4)
    assert found["group"].parameters == found["host"].parameters > 1e7, "with a picture encoder"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_gpu_is_one_clear_error(capsys):
    assert cli.main(["bench", "step", "--device", "cuda"]) == 1
    assert "sees no CUDA device here" in capsys.readouterr().err


def event(name, start, end, device, annotation=False):
    """As in a profiler's list; microseconds."""
    times = SimpleNamespace(start=start, end=end)
    return SimpleNamespace(
        name=name, time_range=times, device_type=device, is_user_annotation=annotation
    )


def test_kernels_and_busy_time_of_a_device():
    cpu, cuda = torch.autograd.DeviceType.CPU, torch.autograd.DeviceType.CUDA
    found = profiling.on_device(
        [
            event("aten::mm", 0, 900, cpu),
            event("cudaLaunchKernel", 0, 10, cpu),
            event("cuLaunchKernelEx", 20, 30, cpu),
            event("cudaMemcpyAsync", 30, 40, cpu),
            event("sgemm", 100, 300, cuda),
            event("elementwise", 250, 400, cuda),
            event("Memcpy HtoD (Pinned -> Device)", 500, 600, cuda),
            event("Optimizer.step", 0, 900, cuda, annotation=True),
        ]
    )
    assert found == {"launches": 2, "kernels": 2, "busy": pytest.approx(400e-6)}


def test_a_table_of_a_gpu_has_its_columns():
    device = {"launches": 900, "kernels": 950, "busy": 0.05, "peak_mb": 1500.0, "wall": 0.3}
    measured = {"host": step.Steps([0.1] * 3, [0.1] * 3, 900.0, 7, [1.0], 16, device)}
    job = step.Job(16, 1, cameras=2, device="cuda")
    (row,) = step_rows.rows(job, measured, {"host": None})
    assert (row["kernel_launches"], row["device_busy_share"]) == (900, pytest.approx(0.5))
    assert row["samples_per_second"] == pytest.approx(160) and row["cameras"] == 2
    head, line, _ = step_rows.table(["host"], [row])
    assert head.endswith("launches  GPU busy  peak GPU") and line.endswith("1500 MB")
    assert len(head) == len(line)


def test_time_that_ranges_cover_is_counted_once():
    assert profiling.covered([(0.0, 1.0), (0.5, 2.0), (0.6, 0.7), (3.0, 4.0)]) == 3.0
    assert profiling.covered([]) == 0.0


def test_intervals_hold_the_median():
    values = [1.0, 1.1, 1.2, 5.0, 1.15, 1.05, 0.9]
    low, high = step_rows.interval(values)
    assert low <= statistics.median(values) <= high and high < 5.0
    assert step_rows.interval([2.0] * 9) == (2.0, 2.0)


def test_a_worker_that_cannot_begin_is_an_error(monkeypatch):
    monkeypatch.setattr(step, "WORKER", "robomimic_ddp.bench.nothing")
    with pytest.raises(ConfigError, match="No module named robomimic_ddp.bench.nothing"):
        step.measure(step.Job(2, 1), 1)


@pytest.mark.parametrize(
    "words",
    [
        ("--rounds", "-1"),
        ("--batch", "0"),
        ("--threads", "0"),
        ("--ranks", "0"),
        ("--down-dims", "16,many"),
        ("--beside", "keras", "--ranks", "2"),
        ("--option", "comm=fast"),
        ("--device", "cuda", "--ranks", "2"),
        ("--ranks", "1", "--rollouts"),
        ("--cameras", "-1"),
    ],
)
def test_usage(words, capsys):
    assert cli.main(["bench", "step", *words]) == 2
    assert words[0] in capsys.readouterr().err
