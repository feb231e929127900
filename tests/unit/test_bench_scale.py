"""`robomimic-ddp bench scale` with figures given, and what a rank of many pays: no processes."""

from __future__ import annotations

import json

import pytest

from robomimic_ddp import cli
from robomimic_ddp.bench import links, model, scale, start_up
from robomimic_ddp.bench.scale import Compute

GIVEN = ["--step-seconds", "0.03", "--parameters", "67e6"]


def rows_of(tmp_path, *words):
    file = tmp_path / "rows.json"
    assert cli.main(["bench", "scale", *GIVEN, *words, "--json", str(file)]) == 0
    return json.loads(file.read_text())


def test_given_figures_become_the_models(tmp_path, capsys):
    rows = rows_of(tmp_path, "--plot", str(tmp_path / "scale.png"))
    assert {row["cluster"] for row in rows} == set(links.CLUSTERS)
    assert [row["world"] for row in rows[:10]] == list(model.WORLDS)
    cluster = links.CLUSTERS["ethernet"]
    row = next(row for row in rows if (row["cluster"], row["world"]) == ("ethernet", 64))
    assert row["kind"] == "modelled" and row["gradient_bytes"] == 268e6
    assert row["all_reduce_seconds"] == cluster.all_reduce(268e6, 64)
    assert row["compute_seconds"] == pytest.approx(0.03)
    # 11 buckets, and 55 % of the step to hide ten of them in.
    each = cluster.all_reduce(268e6 / 11, 64)
    assert row["exposed_seconds"] == pytest.approx(11 * each - 0.55 * 0.03 * 10 / 11)
    assert row["weak_efficiency"] == pytest.approx(0.03 / (0.03 + row["exposed_seconds"]))
    assert (tmp_path / "scale.png").stat().st_size > 10_000
    text = capsys.readouterr().out
    assert "given, not measured" in text and "The model was not checked in this run." in text
    for link in links.LINKS.values():
        assert link.source in text, "every assumption is printed"
    assert text.count("(modelled)") == 3


def test_the_users_link_and_compression_take_the_place_of_ours(tmp_path, capsys):
    (row,) = (
        row
        for row in rows_of(tmp_path, "--bandwidth", "5", "--latency", "0", "--comm", "bf16")
        if row["world"] == 2
    )
    assert row["cluster"] == "given" and row["gradient_bytes"] == 134e6
    assert row["all_reduce_seconds"] == pytest.approx(134e6 / 5e9)
    free = rows_of(tmp_path, "--bandwidth", "1e12", "--latency", "0")
    assert all(row["weak_efficiency"] == pytest.approx(1, abs=1e-6) for row in free)
    slow = rows_of(tmp_path, "--latency", "500")
    usual = rows_of(tmp_path)
    worse = {row["cluster"]: row["weak_efficiency"] for row in slow if row["world"] == 1024}
    assert set(worse) == set(links.LINKS)
    assert worse["ethernet"] < next(
        row["weak_efficiency"]
        for row in usual
        if (row["cluster"], row["world"]) == ("ethernet", 1024)
    )
    rings, trees = (
        {row["world"]: row["all_reduce_seconds"] for row in rows_of(tmp_path, "--algorithm", name)}
        for name in ("ring", "tree")
    )
    assert rings != trees
    exposed = rows_of(tmp_path, "--overlap", "0")
    assert all(
        one["weak_efficiency"] <= other["weak_efficiency"] for one, other in zip(exposed, usual)
    )
    assert "given" in capsys.readouterr().out


def test_two_batch_sizes_tell_what_a_batch_does_not_shorten():
    compute = Compute(16, 4, (0.02, 0.05, 0.03), (0.008, 0.02, 0.03), 10, {"none": 40})
    step = compute.step("none", 1e6, 0.5)
    assert step.per_sample == pytest.approx((0.07 - 0.028) / 12)
    assert step.fixed == pytest.approx(0.03 + 0.07 - 16 * step.per_sample)
    assert step.compute(16) == pytest.approx(0.1) and step.size == 40
    assert step.window(16) == pytest.approx(0.5 * 5 / 7 * 16 * step.per_sample)
    flat = Compute(16, 4, (0.02, 0.05, 0.03), (0.03, 0.05, 0.03), 10, {"none": 40})
    assert flat.step("none", 1e6, 1).per_sample > 0, "noise never makes samples free"


def test_sending_is_free_only_on_cores_that_no_rank_computes_on(monkeypatch):
    monkeypatch.setattr(scale.env, "usable_cores", lambda: 4)
    assert [scale.usable_overlap(world) for world in (1, 2, 3, 4, 8)] == [1, 1, 1 / 3, 0, 0]


def test_start_up_is_told_part_by_part(monkeypatch, capsys):
    fake = "torch.testing._internal.distributed.fake_pg"
    pytest.importorskip(fake, reason="this torch has no fake process group")
    monkeypatch.setattr(start_up, "SAMPLES", 5000)
    found = start_up.rows(worlds=(2, 16), episodes=2000)
    assert [row["world"] for row in found] == [2] * (len(found) // 2) + [16] * (len(found) // 2)
    parts = [row["part"] for row in found if row["world"] == 2]
    assert len(set(parts)) == len(parts) == 9
    for word in ("plan", "statistics", "RLDS", "sampler", "quotas", "verify", "resume", "stop?"):
        assert any(word in part for part in parts), word
    assert all(row["seconds"] > 0 for row in found)
    text = "\n".join(start_up.lines(found))
    assert "each start at 16 ranks" in text and "the network is not in them" in text


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "words",
    [
        ("--batch", "0"),
        ("--bandwidth", "-1"),
        ("--latency", "-2"),
        ("--overlap", "1.5"),
        ("--backward-share", "0.9"),
        ("--check", "1"),
        ("--down-dims", "16,many"),
        ("--comm", "powersgd"),
    ],
)
def test_usage(words, capsys):
    assert cli.main(["bench", "scale", *GIVEN, *words]) == 2
    assert words[0] in capsys.readouterr().err


@pytest.mark.bad_input
def test_a_steps_time_needs_to_know_what_is_sent(capsys):
    assert cli.main(["bench", "scale", "--step-seconds", "0.1"]) == 2
    assert "--parameters" in capsys.readouterr().err
