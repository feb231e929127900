"""The selector: every row of the mode table, each contradiction, batch and learning-rate
arithmetic.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robomimic_ddp.config.launch_env import LaunchEnv
from robomimic_ddp.config.options import resolve
from robomimic_ddp.config.planning.plan import RunPlan, make_plan
from robomimic_ddp.config.planning.settings import Settings
from robomimic_ddp.errors import LaunchError, PlanError

PLAIN = LaunchEnv()
CUDA = "cpu:gloo,cuda:nccl"


def launched(rank=0, world=1, local_rank=None, **more):
    local_rank = rank if local_rank is None else local_rank
    return LaunchEnv(
        launched=True,
        rank=rank,
        world_size=world,
        local_rank=local_rank,
        local_world_size=world,
        **more,
    )


def planned(
    env=PLAIN,
    gpus=0,
    batch=16,
    use_cuda=True,
    lr_on_command_line=False,
    file=None,
    batch_policy="per_rank",
    fsdp_lacks=None,
    epoch_steps=None,
    **command_line,
):
    command_line["batch"] = batch_policy
    return make_plan(
        env,
        resolve(command_line, file=file),
        visible_gpus=gpus,
        use_cuda=use_cuda,
        batch_size=batch,
        lr_on_command_line=lr_on_command_line,
        fsdp_lacks=fsdp_lacks,
        epoch_steps=epoch_steps,
    )


@pytest.mark.parametrize(
    "env, gpus, mode, device, backend",
    [
        (launched(1, 4), 4, "ddp", "cuda:1", CUDA),
        (launched(3, 4), 0, "ddp", "cpu", "gloo"),
        (launched(0, 1), 4, "single", "cuda:0", CUDA),
        (launched(0, 1), 0, "single", "cpu", "gloo"),
        (LaunchEnv(), 2, "dp", "cuda:0", CUDA),
        (LaunchEnv(), 1, "single", "cuda:0", CUDA),
        (LaunchEnv(), 0, "single", "cpu", "gloo"),
    ],
)
def test_mode_table(env, gpus, mode, device, backend):
    plan = planned(env, gpus)
    assert (plan.mode, plan.device, plan.backend) == (mode, device, backend)


def test_every_decision_is_in_the_plan():
    env = replace(launched(5, 8, 1), local_world_size=4)
    options = resolve({"accumulate": 2, "timeout": 77, "workers": "auto", "schedule": "samples"},
                      file={"lr_scaling": "sqrt"})  # fmt: skip
    common = {"visible_gpus": 4, "use_cuda": True, "batch_size": 16}
    plan = make_plan(env, options, workers=3, cores=14, epoch_steps=16, **common)
    assert plan == RunPlan(
        "ddp", 5, 8, 1, "cuda:1", CUDA, 77, 16, 16, 256, "sqrt", 4, 4, 2, 14, (), 2, "samples"
    )
    assert (plan.shortening, plan.steps_of(16), plan.steps_of(8, 2)) == (16, 1, 0)
    settings = Settings.of(options, plan, 3)
    assert (settings.seed, settings.cores, settings.fine_tuning) == (3, 14, False)
    assert settings.record()["plan"]["samples_per_step"] == 256
    assert settings.record()["options"]["timeout"] == 77
    assert settings.record()["sources"]["lr_scaling"] == "file"
    preset = settings.with_preset({"timeout": 5, "precision": "bf16"})
    assert (preset.options.timeout, preset.options.precision) == (77, "bf16")
    assert (preset.sources["timeout"], preset.sources["precision"]) == ("command line", "preset")
    plan = planned(launched(0, 4))
    assert (plan.shortening, plan.steps_of(7), plan.steps_text(7)) == (1, 7, "7")
    plan = planned(launched(0, 3), schedule="samples")
    assert (plan.steps_text(99), plan.steps_text(100)) == ("33", "33 or 34")
    assert [planned(launched(0, n)).several_ranks for n in (1, 2)] == [False, True]
    alone = make_plan(PLAIN, resolve({}), **common)
    assert (alone.data_workers, alone.cores, alone.shortening, alone.notes) == (0, 1, 1, ())


def test_the_only_visible_gpu_is_this_ranks_own():
    """As Slurm's --gpus-per-task=1 shows it, with LOCAL_RANK counting on."""
    plan = planned(launched(3, 4), gpus=1)
    assert (plan.mode, plan.device, plan.visible_gpus) == ("ddp", "cuda:0", 1)
    assert "devices: cuda:0, 4 rank(s) on each of 1 node(s)" in plan.describe()


@pytest.mark.parametrize(
    "named, gpus, said",
    [
        ("5", 0, "names 1 GPU(s), but 0 can be seen, so training runs on the CPU; "),
        ("0, 5", 1, "names 2 GPU(s), but 1 can be seen; "),
        ("0,1", 2, ""),
        (None, 0, ""),
        ("", 0, ""),
        ("-1", 0, ""),
        ("0, -1", 1, ""),
    ],
)
def test_gpus_that_are_named_and_not_there(named, gpus, said):
    notes = planned(LaunchEnv(cuda_visible_devices=named), gpus=gpus).notes
    start = f"warning: CUDA_VISIBLE_DEVICES={named} {said}"
    assert [note.startswith(start) for note in notes] == ([True] if said else [])


def test_cuda_switched_off_by_the_host_means_cpu_and_gloo():
    plan = planned(launched(1, 2), gpus=8, use_cuda=False)
    assert (plan.device, plan.backend, plan.visible_gpus) == ("cpu", "gloo", 0)


@pytest.mark.parametrize(
    "env, gpus, asked, mode",
    [
        (LaunchEnv(), 2, "single", "single"),
        (LaunchEnv(), 0, "dp", "dp"),
        (LaunchEnv(), 1, "dp", "dp"),
        (launched(0, 1), 1, "ddp", "ddp"),
        (launched(0, 1), 4, "dp", "dp"),
        (launched(0, 2), 2, "ddp", "ddp"),
        (launched(0, 2), 2, "fsdp", "fsdp"),
        (launched(1, 2), 0, "fsdp", "fsdp"),
    ],
)
def test_mode_override(env, gpus, asked, mode):
    assert planned(env, gpus, mode=asked).mode == mode


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "env, gpus, options, error, words",
    [
        (launched(0, 4), 4, {"mode": "dp"}, PlanError, ["mode dp", "WORLD_SIZE=4"]),
        (launched(0, 4), 4, {"mode": "single"}, PlanError, ["mode single", "a separate model"]),
        (LaunchEnv(), 4, {"mode": "ddp"}, PlanError, ["torchrun"]),
        (
            launched(3, 4, cuda_visible_devices="0,1"),
            2,
            {},
            LaunchError,
            ["LOCAL_RANK=3", "2 CUDA device(s)", "VISIBLE_DEVICES=0,1", "--nproc_per_node=2"],
        ),
        (launched(2, 4), 2, {}, LaunchError, ["LOCAL_RANK=2", "CUDA_VISIBLE_DEVICES=unset"]),
        (launched(0, 2), 0, {"backend": "nccl"}, PlanError, ["nccl", "CPU"]),
        (launched(0, 1), 1, {"mode": "fsdp"}, PlanError, ["mode fsdp with one rank", "torchrun"]),
        (LaunchEnv(), 4, {"mode": "fsdp"}, PlanError, ["with one rank", "--ranks NUMBER"]),
    ],
)
def test_contradictions(env, gpus, options, error, words):
    with pytest.raises(error) as caught:
        planned(env, gpus, **options)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("mode, noted", [("ddp", True), ("auto", True), ("fsdp", False)])
def test_options_of_fsdp_without_its_mode_are_noted(mode, noted):
    text = planned(launched(0, 4), 4, mode=mode, fsdp_replicas=2).describe()
    assert ("warning: ddp.fsdp_replicas=2 has no effect" in text) == noted


def test_arguments_of_ddp_without_it_are_noted():
    kwargs = {"bucket_cap_mb": 50}
    assert "note: ddp.kwargs.bucket_cap_mb has no effect" in planned(kwargs=kwargs).describe()
    assert "no effect" not in planned(launched(0, 4), 4, kwargs=kwargs).describe()
    assert "kwargs.bucket_cap_mb has no effect" in planned(gpus=2, kwargs=kwargs).describe()


SHARDED = "with ddp.mode=fsdp is not possible"


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "options, words",
    [
        ({"kwargs": {"static_graph": True}}, f"ddp.kwargs.static_graph {SHARDED}: they are"),
        ({"comm": "powersgd:2"}, f"ddp.comm=powersgd:2 {SHARDED}"),
        ({"compile": "true"}, f"ddp.compile=true {SHARDED}"),
        ({"precision": "fp16"}, f"ddp.precision=fp16 {SHARDED}"),
        ({"sync_batchnorm": "true"}, f"ddp.sync_batchnorm=true {SHARDED}"),
        ({"fsdp_replicas": 4}, "ddp.fsdp_replicas=4 with 4 ranks is not possible"),
        ({"fsdp_replicas": 3}, "ddp.fsdp_replicas=3 with 4 ranks is not possible"),
        ({"fsdp_offload": True}, "ddp.fsdp_offload=true on the CPU is not possible"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_what_does_not_go_with_fsdp(options, words):
    with pytest.raises(PlanError) as caught:
        planned(launched(0, 4), mode="fsdp", **options)
    assert words in str(caught.value)
    assert "train with ddp.mode=ddp" in str(caught.value)


@pytest.mark.parametrize("ranks", [2, 3])
def test_two_replicas_need_four_ranks_or_another_even_number(ranks):
    with pytest.raises(PlanError, match=f"ddp.fsdp_replicas=2 with {ranks} ranks is not possible"):
        planned(launched(0, ranks), mode="fsdp", fsdp_replicas=2)


def test_what_goes_with_fsdp():
    assert planned(launched(0, 4), mode="fsdp", precision="bf16", fsdp_replicas=2).mode == "fsdp"
    harmless = {"sync_batchnorm": "false"}
    harmless |= {"accumulate": 2, "activation_checkpointing": True, "loader": {"timeout": 9}}
    assert planned(launched(0, 4), mode="fsdp", **harmless).mode == "fsdp"
    assert planned(launched(0, 4), gpus=4, mode="fsdp", fsdp_offload=True).mode == "fsdp"


def test_shards_of_gpus_travel_over_nccl():
    with pytest.raises(PlanError, match="ddp.backend=gloo with ddp.mode=fsdp on GPUs is not"):
        planned(launched(0, 4), gpus=4, mode="fsdp", backend="gloo")
    assert planned(launched(0, 4), mode="fsdp", backend="gloo").backend == "gloo"
    assert planned(launched(0, 4), gpus=4, backend="gloo").backend == "gloo"


def test_a_torch_without_fsdp():
    with pytest.raises(PlanError, match="ddp.mode=fsdp is not possible: torch 2.0 has no"):
        planned(launched(0, 4), mode="fsdp", fsdp_lacks="torch 2.0 has no fully_shard")


def test_batch_per_rank_and_global():
    each = planned(launched(0, 4), batch=32)
    assert (each.batch_per_rank, each.samples_per_step) == (32, 128)
    shared = planned(launched(0, 4), batch=32, batch_policy="global")
    assert (repr(shared.batch_per_rank), shared.samples_per_step) == ("8", 32)


def test_micro_batches_count_as_samples_of_a_step():
    plan = planned(launched(0, 2), batch=8, accumulate="3", lr_scaling="linear")
    assert (plan.batch_per_rank, plan.samples_per_rank, plan.samples_per_step) == (8, 24, 48)
    assert plan.lr_factor(1, fine_tuning=False) == 6
    assert "batch: 8 per rank x 2 x 3 micro-batches = 48 samples per step" in plan.describe()
    shared = planned(launched(0, 2), batch=48, accumulate=3, batch_policy="global")
    assert (shared.batch_per_rank, shared.samples_per_step) == (8, 48)
    with pytest.raises(PlanError, match="2 ranks x 2 micro-batches: 2 sample.s. .* Use 40 or 44"):
        planned(launched(0, 2), batch=42, accumulate=2, batch_policy="global")


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "batch, words",
    [(30, ["28 or 32", "over 4 ranks: 2 sample(s) would be dropped"]), (3, ["Use 4,"])],
)
def test_global_batch_that_does_not_split(batch, words):
    with pytest.raises(PlanError) as caught:
        planned(launched(0, 4), batch=batch, batch_policy="global")
    for word in words:
        assert word in str(caught.value)


@pytest.mark.bad_input
@pytest.mark.parametrize("batch", [0, "16", 2.5, None, True])
def test_batch_size_that_is_no_batch_size(batch):
    with pytest.raises(PlanError, match="train.batch_size="):
        planned(batch=batch)


@pytest.mark.parametrize(
    "rule, parameters, fine_tuning, factor",
    [
        ("none", 10, False, 1.0),
        ("linear", 10, False, 4.0),
        ("sqrt", 10, False, 2.0),
        ("auto", 99_999_999, False, 4.0),
        ("auto", 100_000_000, False, 2.0),
        ("auto", 10, True, 1.0),
        ("linear", 10, True, 4.0),
    ],
)
def test_learning_rate_factor(rule, parameters, fine_tuning, factor):
    assert math.isclose(
        planned(launched(0, 4), lr_scaling=rule).lr_factor(parameters, fine_tuning), factor
    )


def test_learning_rate_is_left_alone_by_global_batch_and_data_parallel():
    shared = planned(launched(0, 4), batch=32, batch_policy="global", lr_scaling="linear")
    assert shared.lr_factor(10, False) == 1.0
    assert planned(LaunchEnv(), gpus=4, lr_scaling="linear").lr_factor(10, False) == 1.0


def test_a_learning_rate_on_the_command_line_is_final_unless_scaling_is_given_there_too():
    from_file = planned(launched(0, 4), file={"lr_scaling": "linear"}, lr_on_command_line=True)
    assert from_file.lr_factor(10, False) == 1.0 and "not applied" in from_file.describe()
    both = planned(launched(0, 4), lr_scaling="linear", lr_on_command_line=True)
    assert both.lr_factor(10, False) == 4.0
    assert planned(file={"lr_scaling": "none"}, lr_on_command_line=True).notes == ()


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 64), st.integers(1, 200))
def test_epochs_take_together_the_samples_of_one_process(steps, batch, ranks, epochs):
    env, per_step = launched(0, ranks), ranks * batch
    if steps * batch < per_step:
        with pytest.raises(PlanError, match=f"= {steps * batch} samples is less than one step"):
            planned(env, batch=batch, epoch_steps=steps, schedule="samples")
        planned(env, batch=batch, epoch_steps=steps)
        return
    plan = planned(env, batch=batch, epoch_steps=steps, schedule="samples")
    taken = 0
    for epoch in range(1, epochs + 1):
        of_epoch = plan.steps_of(steps, epoch)
        assert str(of_epoch) in plan.steps_text(steps).split(" or ")
        taken += of_epoch * per_step
        assert 0 <= taken - epoch * steps * batch < per_step
