"""`robomimic-ddp bench scale` with real steps of one process and of two gloo ranks."""

from __future__ import annotations

import json

import pytest

from robomimic_ddp import cli
from robomimic_ddp.bench import model, scale

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]


def test_measured_modelled_and_checked(tmp_path, capsys, monkeypatch):
    kept = []
    measure = scale.measure_compute
    monkeypatch.setattr(scale, "measure_compute", lambda *a: kept.append(measure(*a)) or kept[0])
    monkeypatch.setattr(scale, "_WARM_UP", 1)
    file = tmp_path / "rows.json"
    words = ["--rounds", "2", "--batch", "4", "--down-dims", "16,32", "--check", "2"]
    assert cli.main(["bench", "scale", *words, "--comm", "bf16", "--json", str(file)]) == 0
    rows = json.loads(file.read_text())
    compute = kept[0]
    assert compute.samples == 4 and compute.fewer == 1 and 1e4 < compute.parameters < 1e6
    assert compute.sent["none"] == 4 * compute.parameters == 2 * compute.sent["bf16"]
    assert 0 < compute.sent["powersgd"] < compute.sent["none"]
    assert all(seconds > 0 for seconds in (*compute.seconds, *compute.of_fewer))
    modelled = [row for row in rows if row["kind"] == "modelled"]
    assert len(modelled) == 4 * len(model.WORLDS)
    assert {row["gradient_bytes"] for row in modelled} == {compute.sent["bf16"]}
    assert modelled[0]["compute_seconds"] == pytest.approx(sum(compute.seconds))
    (checked,) = [row for row in rows if row["kind"] == "checked"]
    assert checked["world"] == 2 and checked["step_seconds"] > 0
    measured, predicted = checked["step_seconds"], checked["predicted_seconds"]
    assert checked["error"] == pytest.approx(predicted / measured - 1)
    assert predicted > checked["local_step_seconds"] > 0
    link = model.Link("", checked["latency"], checked["bandwidth"])
    for size, seconds in checked["all_reduce_seconds"].items():
        # What was fitted gives back what was measured, but for a latency that would be below 0.
        assert model.ring(link, int(size), 2) >= seconds * (1 - 1e-6)
    text = capsys.readouterr().out
    assert "measured on this CPU" in text and "give --step-seconds" in text
    assert "The model against gloo ranks on this machine" in text
