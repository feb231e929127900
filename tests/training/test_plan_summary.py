"""The block before training: every decision has its line, and what is not known has none."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch

from robomimic_ddp.checkpoint import FoundRun, RunRecord
from robomimic_ddp.data.sampling.sampler import ShardedSampler
from robomimic_ddp.data.sampling.sharded_loader import ShardedLoader
from robomimic_ddp.monitoring import throughput
from robomimic_ddp.training import plan_summary, run
from robomimic_ddp.training.presets import Prepared
from tests.plans import planned_run


def run_of(config=None, ranks=8, on_node=4, gpus=4, **options) -> run.Run:
    present = planned_run(config, ranks, on_node=on_node, gpus=gpus, **options)
    present.built.nets.append(torch.nn.Linear(2, 2))
    return present


def described(present: run.Run, model=None) -> str:
    return "\n".join(plan_summary.lines(present, model))


def config(**train):
    return {
        "train": {"num_epochs": 20, **train},
        "experiment": {"epoch_every_n_steps": 100},
    }


def test_the_beginning_has_what_is_known_before_data_and_nets():
    present = run_of(config())
    title, *lines = "\n".join(plan_summary.beginning(present)).strip().splitlines()
    assert title == "============= robomimic-ddp: plan ============="
    assert lines[0].startswith("mode: DistributedDataParallel, 8 rank(s)")
    assert any("ddp.schedule=samples takes 1/8 of the steps" in line for line in lines)
    assert lines[-1].endswith("in the whole plan, before training")


@pytest.mark.parametrize(("every_batch", "validate"), [(True, True), (True, False), (False, True)])
def test_schedules_that_count_validation_batches_on_one_rank_are_named(every_batch, validate):
    settings = config()
    settings["experiment"]["validate"] = validate
    rate = {"initial": 1e-4, "step_every_batch": every_batch}
    settings["algo"] = {"optim_params": {"policy": {"learning_rate": rate}}}
    text = described(run_of(settings))
    assert ("on one rank validation batches count, too" in text) == (every_batch and validate)


def test_a_terminal_gets_lines_that_fit_it(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    text = "\n".join(["\n=== plan ===", *described(run_of(config())).splitlines(), ""])
    assert plan_summary.fitted(text) == text, "stdout is a file here"
    monkeypatch.setattr(sys, "__stdout__", Terminal())
    monkeypatch.setenv("COLUMNS", "60")
    shown = plan_summary.fitted(text)
    assert shown.startswith("\n=== plan ===\n") and shown.endswith("\n")
    assert max(map(len, shown.splitlines())) <= 60 < max(map(len, text.splitlines()))
    assert shown.replace("\n  ", " ") == text


def test_every_decision_has_a_line():
    data = [{"path": f"/data/{number}.hdf5"} for number in range(5)]
    present = run_of(config(data=data), precision="bf16")
    present.scale_lr(1e-4)
    present.steps = Prepared("preset: fast (fused optimizer)")
    lines = described(present).splitlines()
    for expected in (
        "mode: DistributedDataParallel, 8 rank(s), main rank on cuda:0, 4 visible GPU(s)",
        "devices: cuda:0 to cuda:3, 4 rank(s) on each of 2 node(s); gradients over NCCL",
        "batch: 4 per rank x 8 = 32 samples per step (train.batch_size=4)",
        "learning rate: 0.0001, as configured; ddp.lr_scaling=none (the default here; "
        "robomimic-ddp launch scales by linear); by each rule: none 0.0001, "
        "linear 0.0008, sqrt 0.000282843",
        "schedule: 20 epoch(s) of 100 step(s)",
        "schedule: 8 ranks take 8 x the samples in each step, and as many steps as one process; "
        "ddp.schedule=samples takes 1/8 of the steps, and so as many samples as one process",
        "data: /data/0.hdf5, /data/1.hdf5, /data/2.hdf5 and 2 more",
        "memory: 6 parameters x 20 bytes (weight, gradient, Adam's moments, average) = 120 B on "
        "each rank; activations come on top",
        "precision: bf16",
        "preset: fast (fused optimizer)",
    ):
        assert lines.count(expected) == 1, (expected, lines)


@pytest.mark.parametrize(
    "preset, ema, state", [("fast", {}, 20), ("safe", {}, 24), ("safe", {"enabled": False}, 16)]
)
def test_memory_is_that_of_the_runs_averages(preset, ema, state):
    present = run_of({"algo": {"ema": ema}}, preset=preset)
    assert f"memory: 6 parameters x {state} bytes" in described(present)


def test_the_memory_of_fsdp_is_given_where_a_policy_is_large_or_sharded(monkeypatch):
    sharded = run_of(config(), mode="fsdp")
    assert "with one device or DDP; with FSDP over 8 ranks 15 B and up to 30 B" in described(
        sharded
    )
    large = run_of(config())
    monkeypatch.setattr(plan_summary, "_SMALL_BYTES", 100)
    assert "ddp.mode=fsdp is worth it where DDP's is more than half of a GPU" in described(large)


def test_the_number_of_steps():
    text = described(run_of(config(), schedule="samples"))
    assert "20 epoch(s) of 12 or 13 step(s)" in text
    assert "ddp.schedule=samples: 100 -> 12 or 13 steps in an epoch, and over the run as" in text
    for same in ({"ranks": 1, "on_node": 1}, {"batch": "global", "ranks": 4}):
        for schedule in ("steps", "samples"):
            text = described(run_of(config(), schedule=schedule, **same))
            assert "20 epoch(s) of 100 step(s)" in text and "ddp.schedule" not in text


def test_what_is_not_known_has_no_line():
    alone = described(run_of(ranks=1, on_node=1, gpus=0)).splitlines()
    assert [line.partition(":")[0] for line in alone] == ["mode", "batch", "data workers", "memory"]
    scaled = run_of(ranks=2, on_node=2, gpus=0, lr_scaling="linear")
    scaled.scale_lr(1e-3)
    assert "learning rate: 0.001 -> 0.002 (x 2); ddp.lr_scaling=linear; by" in described(scaled)
    scaled.resume.source = FoundRun(Path("runs"), "state")
    kept = (
        "learning rate: the saved one, since this run resumes; a new run would get 0.001 -> 0.002"
    )
    assert kept in described(scaled)


def adam(lr, rates=()):
    """An optimizer whose schedule begins at nothing, with a group for each further rate."""
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=lr)
    for rate in rates:
        group = {"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate}
        optimizer.add_param_group(group)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    return optimizer


MISSED = "warning: ddp.lr_scaling=linear does not reach the optimizer"


@pytest.mark.parametrize(
    ("rates", "changes", "text"),
    [
        ({"policy": [8e-3]}, {}, None),
        ({"policy": [8e-4, 8e-3]}, {}, None),  # a tenth for the encoder
        ({"policy": [1e-3]}, {}, f"{MISSED} policy (learning rate 0.001): a rate that is not"),
        (
            {"policy": [8e-3], "a": [1e-3], "b": [0.5]},
            {},
            f"{MISSED}s a (learning rate 0.001), b (learning rate 0.5): a rate",
        ),
        ({"policy": [1e-3]}, {"batch": "global", "ranks": 4}, None),
        ({"policy": [1e-3]}, {"ranks": 1, "on_node": 1}, None),
        ({"policy": [1e-3]}, {"lr_scaling": "none"}, None),
    ],
)
def test_optimizers_that_the_scaling_does_not_reach_are_named(rates, changes, text):
    present = run_of(config(), **{"lr_scaling": "linear", **changes})
    present.scale_lr(1e-3)
    optimizers = {name: adam(first, rest) for name, (first, *rest) in rates.items()}
    plan = described(present, SimpleNamespace(optimizers=optimizers))
    assert plan.count("does not reach") == (text is not None) and (text or "") in plan


def test_rates_that_a_checkpoint_has_set_are_not_judged():
    model = SimpleNamespace(optimizers={"policy": adam(1e-3)})
    for is_scaled in (True, False):
        present = run_of(config(), lr_scaling="linear")
        present.resume.by_host = True
        if is_scaled:
            present.scale_lr(5e-3)
        assert (MISSED in described(present, model)) != is_scaled


def test_waiting_for_data_is_worth_a_line():
    log = {"Time_Data_Wait_Share": 0.42}
    assert "ranks waited for data 42% of the epoch's time" in throughput.waiting_note(log, 100)
    assert not throughput.waiting_note(log, 5) and not throughput.waiting_note({}, 100)
    assert not throughput.waiting_note({"Time_Data_Wait_Share": 0.1}, 100)


def test_a_prepared_set_is_named_with_its_pixels():
    dataset = SimpleNamespace(name="/data/x", prepared="prepared from y")
    present = run_of(config(data=[]))
    present.built.loaders["train"] = SimpleNamespace(dataset=dataset)
    assert "data: /data/x is prepared from y" in described(present)


class Faulty:
    """As DROID's RLDS dataset: nothing in the host asks for its length."""

    def __len__(self):
        raise NameError("name 'np' is not defined")


def test_data_whose_length_fails_has_no_line_of_it():
    present = run_of(config(data=[]), ranks=1, on_node=1, gpus=0)
    present.built.loaders["train"] = torch.utils.data.DataLoader(Faulty(), sampler=[0])
    assert "samples over all ranks" not in described(present)


@pytest.mark.parametrize(
    ("size", "drop_last", "text"),
    [
        (
            131,
            True,
            "a pass is 4 steps, without the 3 sample(s) that do not fill one",
        ),
        (128, True, "a pass is 4 steps\n"),
        (131, False, "a pass is 5 steps\n"),
    ],
)
def test_samples_that_a_pass_leaves_out_are_counted(size, drop_last, text):
    present = run_of(config(data=[]))
    sampler = ShardedSampler(
        lambda _: numpy.arange(size), size, rank=0, world_size=8, drop_last=drop_last
    )
    present.built.loaders["train"] = ShardedLoader(
        torch.utils.data.DataLoader, {"dataset": range(size)}, sampler, 4, drop_last
    )
    assert text in described(present)


def test_a_plan_says_who_plays_what_is_not_split(tmp_path):
    rollout = {"enabled": True, "batched": True}
    line = "rollouts: rank 0 plays all episodes (experiment.rollout.batched:"
    for ranks, changes, times in ((8, {}, 1), (8, {"batched": False}, 0), (1, {}, 0)):
        present = run_of({"experiment": {"rollout": {**rollout, **changes}}}, ranks, min(ranks, 4))
        present.output.record = RunRecord(tmp_path, {})
        assert described(present).count(line) == times, (ranks, changes)


@pytest.mark.parametrize(
    ("enabled", "text"),
    [(True, "a checkpoint is kept of each epoch"), (False, "no checkpoints are kept, since")],
)
def test_a_plan_says_what_evaluate_gets(tmp_path, enabled, text):
    present = run_of({"experiment": {"rollout": {"enabled": enabled}}}, rollouts="evaluate")
    present.output.record = RunRecord(tmp_path, {})
    assert f"evaluate {tmp_path} --follow`, for which {text}" in described(present)
