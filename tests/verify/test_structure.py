"""What is compared of nets and optimizers, and what a rank finds wrong with them by itself."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from robomimic_ddp.distributed import group
from robomimic_ddp.distributed.gradients import optimizer_ddp, parallel
from robomimic_ddp.errors import VerifyError
from robomimic_ddp.verify import checksum, structure
from tests.ranks.toy import make_algo, step

WEIGHT = "nets.policy.obs_encoder.layer.weight"


class Plain(torch.optim.Optimizer):
    """Has the settings that are written here in every torch."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1, "initial_lr": 0.1, "betas": (0.9,), "all": [1]})


def small_algo():
    nets = nn.ModuleDict({"net": nn.Linear(3, 2), "norm": nn.SyncBatchNorm(2, affine=False)})
    nets["net"].bias.requires_grad_(False)
    parallel.parallelise(nets["net"], "dp")
    nets["plain"] = nn.BatchNorm1d(1, affine=False, track_running_stats=False)
    nets["plain"].register_buffer("grid", torch.ones(5, dtype=torch.float64))
    alpha = torch.ones(4, requires_grad=True)
    optimizers = {"a": Plain([nets["net"].weight, nets["net"].bias]), "b": Plain([alpha])}
    bins = torch.arange(3)
    return SimpleNamespace(nets=nets, optimizers=optimizers, bins=bins, noise_scheduler=Scheduler())


class Scheduler:
    def __init__(self):
        self.count = 7

    def add_noise(self):
        pass


def test_items_of_structure():
    items = structure.structure_items(small_algo())
    norms = [name for name in items if ".norm." in name]
    assert len(norms) == 3 and all(items.pop(name).startswith("frozen") for name in norms)
    assert items == {
        "the parallel nets": ("net",),
        "optimizers": ("a", "b"),
        "kind of nets.net.weight": "trainable float32 [2, 3]",
        "kind of nets.net.bias": "frozen float32 [2]",
        "kind of nets.plain.grid": "frozen float64 [5]",
        "kind of optimizer b[0]": "trainable float32 [4]",
        "optimizer a, group 0: parameters": ("nets.net.weight", "nets.net.bias"),
        "optimizer a, group 0: betas": (0.9,),
        "optimizer b, group 0: parameters": ("none of nets'",),
        "optimizer b, group 0: betas": (0.9,),
    }


def test_items_of_settings_and_sums():
    algo = small_algo()
    items = structure.settings_items(algo)
    assert items["settings of self.bins"] == (torch.int64, (3,), checksum(algo.bins))
    numbers = "{'self.training': True, 'self.in_features': 3, 'self.out_features': 2}"
    assert items["settings of net"] == f"Linear {numbers}"
    assert items["settings of noise_scheduler"] == "Scheduler {'self.count': 7}"
    state = {f"nets.{name}": checksum(value) for name, value in algo.nets.state_dict().items()}
    assert structure.state_sums(algo) == {**state, "optimizer b[0]": checksum(torch.ones(4))}
    buffers = {f"nets.{name}": checksum(buffer) for name, buffer in algo.nets.named_buffers()}
    assert structure.buffer_sums(algo) == buffers and len(buffers) == 4
    assert structure.shared_buffers(algo) == {name for name in buffers if "norm" in name}


def error_of_structure() -> str:
    """Collective: this rank's error; the nets of the second are frozen."""
    algo = make_algo("ddp")
    algo.nets.requires_grad_(group.is_main())
    with pytest.raises(VerifyError) as refused:
        structure.require_same_structure(algo)
    return str(refused.value)


def test_ranks_with_other_nets(ranks):
    for text in ranks.run(error_of_structure):
        assert text.startswith("before weights are made equal: the parallel nets is not the same")
        assert "Build, freeze and add the same nets and optimizers on every rank." in text


def test_nets_that_a_rank_finds_wrong_by_itself():
    algo = make_algo("ddp")
    algo.optimizers = {}
    for net, complaint in (
        (nn.DataParallel(nn.Linear(2, 2)), "wrapped is a DataParallel, in or around a net"),
        (nn.Linear(2, 2), r"SimpleNamespace: nets.wrapped.weight \(2 parameter\(s\) in all\)"),
    ):
        algo.nets["wrapped"] = net
        with pytest.raises(VerifyError, match=rf"on rank\(s\) \[0\]: {complaint}"):
            structure.require_same_structure(algo)


def error_after_loading(what: str) -> str | None:
    """Collective: this rank's error or None; the second has other weights, moments or rates."""
    algo, second = make_algo("single"), not group.is_main()
    if what == "moments":
        weights = copy.deepcopy(algo.nets.state_dict())
        step(algo, torch.full((3, 4), 1.0 + second))
        algo.nets.load_state_dict(weights)
    elif second and what == "weights":
        algo.nets.load_state_dict(make_algo("single", seed=1).nets.state_dict())
    elif second and what == "rates":
        algo.optimizers["policy"].param_groups[0]["lr"] = 0.5
    try:
        structure.require_same_weights(algo)
    except VerifyError as error:
        return str(error)


@pytest.mark.parametrize(
    "what, named",
    [
        ("nothing", None),
        ("weights", WEIGHT),
        ("moments", f"optimizer policy: exp_avg of {WEIGHT}"),
        ("rates", "optimizer policy learning rates"),
    ],
)
def test_ranks_that_loaded_other_checkpoints(what, named, ranks):
    for text in ranks.run(error_after_loading, what):
        assert (text is None) is (named is None)
        if named is not None:
            assert text.startswith(f"after loading a checkpoint: {named} is not the same")
            assert text.endswith("or an older copy, under that path.")


def test_an_algorithm_whose_optimizers_are_not_found_is_named():
    """Else each rank would train a different model, unnoticed with ddp.verify=false."""
    algo = make_algo("single")
    assert structure.uncovered(algo) == []
    algo.optimizers = {}
    (only,) = structure.uncovered(algo)
    complaint = f"SimpleNamespace: {WEIGHT} (6 parameter(s) in all) is outside the nets and optim"
    assert only.startswith(complaint)


@pytest.mark.parametrize("sizes, is_target", [((4, 4), True), ((4, 3), False), ((4,), False)])
def test_a_target_network_beside_parallel_nets_is_not_outside(sizes, is_target):
    """Forks train IQL with a diffusion policy, whose nets are parallel: `critic_target` follows."""
    nets = {"policy": parallel.parallelise(nn.Linear(2, 2), "dp")}
    for name, widths in (("critic", (4, 4)), ("critic_target", sizes)):
        nets[name] = nn.ModuleList(nn.Linear(width, 1) for width in widths)
    algo = SimpleNamespace(nets=nn.ModuleDict(nets))
    algo.optimizers = {"critic": torch.optim.SGD(algo.nets["critic"].parameters(), lr=1.0)}
    complaints = structure.uncovered(algo)
    assert bool(complaints) is not is_target
    assert is_target or "nets.critic_target.0.weight (" in complaints[0]


def built_algo():
    """Two nets that are parallel, as after a training forward."""
    algo = make_algo("dp")
    for net in algo.nets["policy"].values():
        parallel.state_of(net).build(net)
    return algo


def test_parameters_that_are_not_averaged():
    algo = built_algo()
    encoder, head = algo.nets["policy"].values()
    assert [*structure.unreduced(algo)] == []
    encoder.late = nn.Parameter(torch.ones(1))
    encoder.frozen = nn.Parameter(torch.ones(1), requires_grad=False)
    parallel.state_of(head).parallel.require_backward_grad_sync = False
    late = "was added, replaced or unfrozen after training began"
    first, second = structure.unreduced(algo)
    assert first.startswith(f"policy.obs_encoder.late {late}")
    assert second.startswith("policy.noise_pred_net is inside DDP's no_sync()")
    parallel.state_of(encoder).parallel = nn.DataParallel(nn.Linear(1, 1))
    assert [*structure.unreduced(algo)] == [second]
    parallel.state_of(head).accumulating = True
    assert [*structure.unreduced(algo)] == []


def test_what_optimizers_train_outside_of_parallel_nets(monkeypatch):
    algo = built_algo()
    strangers = [nn.Parameter(torch.ones(1)) for _ in range(2)]
    algo.optimizers["policy"].add_param_group({"params": strangers})
    (text,) = structure.unreduced(algo)
    assert text.startswith("optimizer policy, with 2 of its parameter(s), was added, replaced")
    (text,) = structure.foreign(algo)
    assert text.startswith(
        "optimizer policy updates 2 parameter(s) that are in none of the model's"
    )
    averaging = SimpleNamespace(reduced=strangers)
    monkeypatch.setattr(optimizer_ddp, "of", {algo.optimizers["policy"]: averaging}.get)
    assert [*structure.unreduced(algo), *structure.foreign(algo)] == []
    algo.optimizers["policy"] = Plain(algo.nets["policy"]["obs_encoder"].parameters())
    (text,) = structure.foreign(algo)
    assert text.startswith("no optimizer has a parameter of policy.noise_pred_net: it would never")


def test_why_gradients_may_differ():
    algo = built_algo()
    encoder, head = map(parallel.state_of, algo.nets["policy"].values())
    encoder.training_forwards = 1
    hint = structure.gradient_hint(algo)
    assert hint.startswith("policy.noise_pred_net was never called in training mode")
    head.training_forwards = 1
    assert structure.gradient_hint(algo).startswith("A part of a net was trained past its")
    single = structure.gradient_hint(make_algo("single"))
    assert single == "Gradients were changed on some ranks only, or after they were averaged."
