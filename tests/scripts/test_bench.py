"""The measurements behind docs/performance.md: their rows, and that variants compute the same; no
time is asserted.
"""

from __future__ import annotations

import importlib.util
import json
import os

import pytest
import torch

from robomimic_ddp.errors import ConfigError
from scripts.bench import data, fsdp, small_step, step, utilization
from scripts.bench.loading.data_set import DataJob

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
SMALL = ["--rounds", "1", "--batch", "2", "--down-dims", "16,32"]


def rows_of(tmp_path, measurement, *words):
    file = tmp_path / "rows.json"
    assert measurement.main([*words, "--json", str(file)]) == 0
    return json.loads(file.read_text())


@pytest.mark.slow
def test_host_safe_and_fast_take_the_same_steps(tmp_path, capsys):
    rows = rows_of(tmp_path, step, *SMALL, "--option", "accumulate=2")
    assert [row["variant"] for row in rows] == ["host", "ours", "ours", "ours"]
    host, safe, fast, twice = rows
    assert host["loss"] == safe["loss"], "safe is the host's own arithmetic"
    assert fast["loss"] == pytest.approx(host["loss"], rel=1e-4)
    for row in rows:
        samples = row["samples_per_second"] / row["steps_per_second"]
        assert samples == pytest.approx(4 if row is twice else 2)
        assert row["parameters"] == host["parameters"] and row["peak_rss_mb"] > 100
    for times in fast["times"]["host"].values():
        assert times["low"] <= times["median"] <= times["high"]
    text = capsys.readouterr().out
    assert "ours, preset=fast: " in text and "times the samples/s of host" in text


@pytest.mark.slow
def test_steps_of_a_small_net(tmp_path, capsys):
    names = ["host", "DDP by hand", "ours, fast, 2 ranks"]
    only = [word for name in names for word in ("--only", name)]
    rows = rows_of(tmp_path, small_step, "--quick", "--rounds", "1", *only)
    assert [(row["variant"], row["ranks"]) for row in rows] == [*zip(names, (1, 2, 2))]
    assert all(row["milliseconds"] > 0 < row["processor_milliseconds"] for row in rows)
    assert set(rows[-1]["over"]) == {"host", "DDP by hand"}
    assert "| ours, fast, 2 ranks | 2 |" in capsys.readouterr().out


@pytest.mark.slow
def test_several_ranks(tmp_path):
    rows = rows_of(tmp_path, step, *SMALL, "--ranks", "2")
    peers = [name for name in (step.ACCELERATE, step.FABRIC) if importlib.util.find_spec(name)]
    assert [row["variant"] for row in rows] == ["host", "hand_written_ddp", *peers, "ours"]
    assert [row["world"] for row in rows] == [1, *[2] * (len(rows) - 1)]
    for row in rows:
        per_step = row["samples_per_second"] / row["steps_per_second"]
        assert per_step == pytest.approx(2 * row["world"])
    assert set(rows[-1]["times"]) == {"host", "hand_written_ddp", *peers}


@pytest.mark.slow
def test_what_fsdp_keeps_of_a_policy(tmp_path, capsys):
    """Half of each part, but for slices that do not divide; DDP's are 4 bytes of each parameter."""
    whole, half = rows_of(tmp_path, fsdp, *SMALL, "--ranks", "2")
    assert (whole["mode"], half["mode"]) == ("ddp", "fsdp")
    fp32 = 4 * whole["parameters"]
    for part, copies in {"weights": 1, "gradients": 1, "moments": 2, "averages": 1}.items():
        assert whole["bytes"][part] == pytest.approx(copies * fp32, rel=0.01), part
        assert half["bytes"][part] == pytest.approx(copies * fp32 / 2, rel=0.05), part
    assert whole["over_ddp"]["bytes"] == 1 and 0.49 < half["over_ddp"]["bytes"] < 0.55
    assert "| fsdp | 2 |" in capsys.readouterr().out


@pytest.mark.slow
def test_ddp_of_one_rank_computes_as_the_host_by_hand_and_as_ours():
    """Ours in a group of one is what `--device cuda` measures over NCCL."""
    variants = [step.Variant(step.HOST), step.Variant(step.BY_HAND)]
    variants.append(step.Variant(step.OURS, {"mode": "ddp"}))
    host, by_hand, ours = step.measure(step.Job(2, 1, (16, 32)), 1, variants)
    assert by_hand["loss"] == pytest.approx(host["loss"], rel=1e-3)
    assert ours["loss"] == pytest.approx(host["loss"], rel=1e-4)
    assert host["parameters"] == by_hand["parameters"] == ours["parameters"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_missing_gpu_is_one_clear_error(capsys):
    assert step.main(["--device", "cuda"]) == 1
    assert "sees no CUDA device here" in capsys.readouterr().err


def test_a_worker_that_cannot_begin_is_an_error(monkeypatch):
    monkeypatch.setattr(step, "WORKER", "scripts.bench.nothing")
    with pytest.raises(ConfigError, match="No module named scripts.bench.nothing"):
        step.measure(step.Job(2, 1), 1, step.ON_CPU)


@pytest.mark.slow
def test_loaders_and_what_they_count(tmp_path, capsys):
    pytest.importorskip("tensorflow_datasets", reason="the extra [rlds] is not installed")
    small = {"episodes": 6, "steps": 12, "batch": 4, "buffer": 8}
    job = DataJob(str(tmp_path), (20, 36), (12, 16), **small)
    rows = data.measure(job, (1, 3), 1, 0.01)
    assert [(row["loader"], row["world"]) for row in rows] == [
        (loader, world) for world in (1, 3) for loader in data.LOADERS
    ]
    for row in rows:
        read_too_much = row["loader"] == "skipping" and row["world"] == 3
        decoded = row["decoded_over_delivered"]
        assert 1 < decoded <= 3 if read_too_much else decoded == 1.0
        assert row["frames_per_second"] > 0 and row["cpu_seconds_per_1000_frames"] > 0
        gpus = 16 / (row["cpu_seconds_per_1000_frames"] / 1000 * job.frames_per_sample * 1000)
        assert row["gpus_fed"] == pytest.approx(gpus)
        assert list(row["over_hosts"]) == (list(data.HOSTS) if row["loader"] in data.OURS else [])
        assert 50 < row["peak_rss_mb"] < 10_000 and row["first_batch_seconds"] > 0
    text = "\n".join(data.lines(job, rows))
    assert "20x36 (" in text and "to 12x16; 6 episodes" in text and "skipping" in text
    assert "ours_prepared over skipping, 3 ranks, CPU: " in text


@pytest.mark.slow
def test_utilization_counts_computing_and_waiting(tmp_path, capsys):
    pytest.importorskip("tensorflow_datasets", reason="the extra [rlds] is not installed")
    small = {"episodes": 6, "steps": 12, "batch": 4, "buffer": 8}
    job = DataJob(str(tmp_path), (20, 36), (12, 16), **small)
    asleep, busy = utilization.measure(job, 2, [0.01], 1, 0.05, [*utilization.COMPUTE])
    for row in (asleep, busy):
        assert 0 < row["utilization"] <= 1 and row["asked_samples_per_second"] == 2 * 4 / 0.01
        most = row["utilization"] * row["asked_samples_per_second"]
        assert 0 < row["samples_per_second"] <= most * 1.001
    cpu = asleep["cpu_seconds_per_sample"]
    assert asleep["cores_for_node"][500] == pytest.approx(8 * 500 * cpu)
    assert 0 < asleep["node_utilization"] <= 1 and busy["cpu_seconds_per_sample"] is None
    text = "\n".join([*utilization.lines([asleep]), *utilization.lone_lines([busy])])
    assert "8 GPUs at 500 samples/s each need" in text and "in Python: waits" in text


def test_rows_are_written_after_each_size(tmp_path, monkeypatch):
    """What was measured is not lost with what comes after it."""
    file = tmp_path / "rows.json"

    def second_fails(job, *rest):
        if job.stored == (8, 8):
            raise ConfigError("stopped here")
        return [{"stored": job.stored}]

    monkeypatch.setattr(data, "measure", second_fails)
    monkeypatch.setattr(data, "lines", lambda job, rows: [])
    words = ["--sizes", "16x16:16x16", "8x8:8x8", "--worlds", "1", "--json", str(file)]
    assert data.main(words) == 1
    assert json.loads(file.read_text()) == [{"stored": [16, 16]}]


@pytest.mark.slow
def test_a_loader_that_ends_is_an_error(monkeypatch):
    monkeypatch.setattr(data, "write_if_missing", os._exit)
    with pytest.raises(ConfigError, match="a process of the benchmark was ended"):
        data.measure(7, (1,), 1, 0.01)


@pytest.mark.parametrize(
    "measurement, words",
    [(step, "--batch 0"), (step, "--down-dims 16,many"), (step, "--option comm=fast"),
     (step, "--ranks 2 --device cuda"), (data, "--sizes 8x8:8x8:box"), (data, "--worlds 0")],
)  # fmt: skip
def test_usage(measurement, words, capsys):
    with pytest.raises(SystemExit) as ended:
        measurement.main(words.split())
    assert ended.value.code == 2 and words.split()[0] in capsys.readouterr().err
