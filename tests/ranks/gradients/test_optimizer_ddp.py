"""Gradients averaged for each optimizer: two and three ranks against one process."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, redirect_stdout
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch import nn

from robomimic_ddp.checkpoint import restore_model
from robomimic_ddp.config.options import Options
from robomimic_ddp.distributed import group, host_algo, watchdog
from robomimic_ddp.distributed.gradients import optimizer_ddp, parallel
from robomimic_ddp.distributed.gradients.gradient_watch import GradientWatch
from robomimic_ddp.errors import WrapError
from robomimic_ddp.verify import structure
from tests.ranks.actor_critic import backprop, make_algo, step
from tests.ranks.pool import RankError
from tests.runs import captured
from tests.versions import NEEDS_CPU_FP16

BATCH, STEPS = 6, 4


def batches(world_size: int) -> torch.Tensor:
    made = torch.Generator().manual_seed(3)
    return torch.randn(STEPS, world_size * BATCH, 4, generator=made, dtype=torch.float64)


def moved(algo) -> torch.Tensor:
    """Everything that a step changes, in one row."""
    state = [tensor.detach().flatten() for _, tensor in host_algo.named_state(algo)]
    moments = [tensor.flatten() for _, tensor in host_algo.named_optimizer_state(algo)]
    return torch.cat([one.double() for one in [*state, *moments]])


MESSAGE, DDP, PLAIN = "one message", "DDP", "plain backward"


def build(algo, undo, way: str = MESSAGE) -> None:
    """Collective: as for few parameters, or as for many."""
    size = 0 if way == DDP else optimizer_ddp.FLAT_BYTES
    with mock.patch.object(optimizer_ddp, "FLAT_BYTES", size):
        optimizer_ddp.build(algo, Options(), undo)
    for averaging in optimizer_ddp.among(algo):
        parameters = all(isinstance(p, nn.Parameter) for p in averaging.reduced)
        assert (averaging.parallel is not None) == (way == DDP and parameters)


def train(way: str = MESSAGE, alpha_is_parameter: bool = True) -> tuple:
    """On a rank: (what was trained, complaints)."""
    algo, through = make_algo(alpha_is_parameter), way != PLAIN
    rank, world = group.rank(), group.world_size()
    with ExitStack() as undo:
        build(algo, undo, way)
        began, asked = (
            undo.enter_context(mock.patch.object(owner, name, wraps=getattr(owner, name)))
            for owner, name in ((watchdog, "began"), (group, "gather_objects"))
        )
        for x in batches(world):
            step(algo, x[rank * BATCH : (rank + 1) * BATCH], through)
        averaging = optimizer_ddp.among(algo)  # of the actor, two critics and the temperature
        assert (began.call_count, asked.call_count) == (4 * STEPS, 4)
        assert [each.training_forwards for each in averaging] == [through * STEPS] * 3 + [0]
        assert all((each.message_seconds is None) == bool(each.parallel) for each in averaging)
        complaints = [*structure.unreduced(algo), *structure.foreign(algo)]
    assert all(optimizer_ddp.of(one) is None for _, one in host_algo.named_optimizers(algo))
    assert not any(one._optimizer_step_pre_hooks for _, one in host_algo.named_optimizers(algo))
    return moved(algo), complaints


def one_process(world_size: int) -> torch.Tensor:
    algo = make_algo()
    for x in batches(world_size):
        step(algo, x)
    return moved(algo)


@pytest.mark.parity
@pytest.mark.parametrize("world_size, alpha_is_parameter", [(2, False), (3, True)])
@pytest.mark.parametrize("way", [MESSAGE, DDP, PLAIN])
def test_ranks_equal_one_process(ranks, world_size, way, alpha_is_parameter):
    call = (train, way, alpha_is_parameter)
    of_ranks = ranks.run(*call, world_size=world_size)
    expected, start = one_process(world_size), moved(make_algo())
    distance = (expected[: len(start)] - start).norm()
    for trained, complaints in of_ranks:
        assert torch.equal(trained, of_ranks[0][0])
        assert (trained - expected).norm() / distance < 1e-12
        assert not complaints


def train_with_comm(way: str) -> tuple[torch.Tensor, list[str], int]:
    """On a rank, with gradients in 16 bits: (what was trained, notes, DDP objects at the end)."""
    algo, rank, printed = make_algo(), group.rank(), io.StringIO()
    options = Options(comm="fp16", kwargs={"bucket_cap_mb": 5})
    with ExitStack() as undo:
        optimizer_ddp.build(algo, options, undo)
        assert all(averaging.parallel for averaging in optimizer_ddp.among(algo))
        with redirect_stdout(printed):
            for x in batches(2):
                step(algo, x[rank * BATCH : (rank + 1) * BATCH], way != PLAIN)
        by_ddp = [averaging.parallel for averaging in optimizer_ddp.among(algo)]
    return moved(algo), printed.getvalue().splitlines(), len(by_ddp) - by_ddp.count(None)


def test_ddps_options_do_not_reach_what_is_stepped_after_a_plain_backward(ranks):
    """The user hears of it once for each optimizer, and DDP's memory is freed."""
    (trained, notes, by_ddp), (_, of_rank_1, _) = ranks.run(train_with_comm, PLAIN)
    assert torch.allclose(trained, one_process(2), rtol=1e-12)
    names = [name for name, _ in host_algo.named_optimizers(make_algo())]
    for name, note in zip(names, sorted(notes, key=lambda note: names.index(note.split()[2]))):
        assert note.startswith(f"note: optimizer {name} is stepped after a plain backward()")
        assert "without ddp.kwargs.bucket_cap_mb and ddp.comm=fp16." in note
    assert len(notes) == len(names) and not of_rank_1 and by_ddp == 0


def test_ddps_options_reach_a_loss_that_passes_through(ranks):
    (_, notes, by_ddp), _ = ranks.run(train_with_comm, DDP)
    assert (len(notes), by_ddp) == (1, 3)  # the temperature is stepped after a plain backward()


def steps_each_their_own_way() -> None:
    algo = make_algo()
    with ExitStack() as undo:
        build(algo, undo)
        loss = algo.nets["actor"](torch.ones(2, 4, dtype=torch.float64)).sum()
        backprop(algo.optimizers["actor"], loss, through=group.is_main())


def test_ranks_that_average_at_different_moments_are_named(ranks):
    """Else gloo would abort, or wait."""
    by_rank = (
        "rank 0: optimizer actor averages gradients during the backward pass; "
        "rank 1: optimizer actor averages gradients before the step. "
    )
    with pytest.raises(RankError, match=f"WrapError: the ranks do not take the same .*: {by_rank}"):
        ranks.run(steps_each_their_own_way)


def sent_by_ddp() -> list[bool]:
    """Collective: whether parameters of these numbers of bytes have a DDP."""
    have_ddp = []
    for count in (999_999, 1_000_000):
        algo, _ = algo_of([torch.zeros(count)])
        with ExitStack() as undo:
            optimizer_ddp.build(algo, Options(), undo)
            have_ddp.append(optimizer_ddp.of(algo.optimizers["all"]).parallel is not None)
    return have_ddp


def test_four_million_bytes_are_sent_by_ddp(ranks):
    assert ranks.run(sent_by_ddp) == [[False, True]] * 2


CLIPPED = 1e-3


def algo_with_sgd(rate: float, *names: str) -> SimpleNamespace:
    """The algorithm, with SGD of the nets of these names for its optimizers."""
    algo = make_algo()
    nets = {"actor": algo.nets["actor"], "critic": algo.nets["critic"][0]}
    algo.optimizers = {name: torch.optim.SGD(nets[name].parameters(), rate) for name in names}
    return algo


def samples_of_steps(algo: SimpleNamespace, of_all_ranks: bool = False) -> Iterator[torch.Tensor]:
    """Collective: this rank's of two ranks, whose optimizers average; in one process those
    `of_all_ranks`.
    """
    with ExitStack() as undo:
        if not of_all_ranks:
            optimizer_ddp.build(algo, Options(), undo)
        for x in batches(2):
            yield x if of_all_ranks else x[group.rank() * BATCH :][:BATCH]


def step_with_clipping(algo, x, clip) -> None:
    """Two optimizers after one backward; as hosts clip that do not call backprop_for_loss."""
    actor, critic = algo.nets["actor"], algo.nets["critic"][0]
    for optimizer in algo.optimizers.values():
        optimizer.zero_grad()
    for part in x.chunk(2):  # accumulates
        critic(torch.tanh(actor(part))).pow(2).mean().backward()
    clip(actor.parameters(), CLIPPED)
    clip(critic.weight, CLIPPED)
    clip(critic.bias, CLIPPED)
    for optimizer in algo.optimizers.values():
        optimizer.step()


def clip_by_norm(parameters, bound) -> None:
    nn.utils.clip_grad_norm_(parameters, max_norm=bound)


def clip_by_value(parameters, bound) -> None:
    nn.utils.clip_grad.clip_grad_value_(parameters, bound)


def clip_nothing(parameters, bound) -> None:
    """To see that the others do."""


def train_with_clipping(clip, of_all_ranks: bool = False) -> torch.Tensor:
    algo = algo_with_sgd(1.0, "actor", "critic")
    functions = nn.utils.clip_grad_norm_, nn.utils.clip_grad.clip_grad_value_
    for x in samples_of_steps(algo, of_all_ranks):
        step_with_clipping(algo, x, clip)
    assert (nn.utils.clip_grad_norm_, nn.utils.clip_grad.clip_grad_value_) == functions
    return moved(algo)


@pytest.mark.parity
@pytest.mark.parametrize("clip", [clip_by_norm, clip_by_value])
def test_torchs_functions_clip_the_mean_after_a_plain_backward(ranks, clip):
    expected = train_with_clipping(clip, of_all_ranks=True)
    assert not torch.allclose(expected, train_with_clipping(clip_nothing, of_all_ranks=True))
    for trained in ranks.run(train_with_clipping, clip):
        assert torch.allclose(trained, expected, rtol=1e-12, atol=1e-15)


def scale_then_step() -> None:
    algo = make_algo()
    with ExitStack() as undo:
        optimizer_ddp.build(algo, Options(), undo)
        algo.nets["actor"](torch.ones(2, 4, dtype=torch.float64)).sum().backward()
        algo.nets["actor"].weight.grad.clamp_(-0.1, 0.1)
        algo.optimizers["actor"].step()


def test_gradients_changed_before_they_are_averaged_are_refused(ranks):
    with pytest.raises(RankError) as caught:
        ranks.run(scale_then_step)
    for word in ("WrapError", "optimizer actor", "clip the mean", "backprop_for_loss"):
        assert word in str(caught.value)


def clip_by_hand_later() -> None:
    """Through `data`, whose writes torch does not count, and from the third step on."""
    algo = algo_with_sgd(1.0, "actor")
    for number, x in enumerate(samples_of_steps(algo)):
        algo.optimizers["actor"].zero_grad()
        algo.nets["actor"](x).square().mean().backward()
        for p in algo.nets["actor"].parameters():
            p.grad.data.clamp_(-1e-3 if number > 1 else -1e3)
        algo.optimizers["actor"].step()
        assert number < 3, "not seen in its own step, nor in the next one"


def test_gradients_that_are_clipped_by_hand_are_refused_in_any_step(ranks):
    with pytest.raises(RankError) as caught:
        ranks.run(clip_by_hand_later)
    for word in ("WrapError", "optimizer actor", "they were changed, in this step or the one"):
        assert word in str(caught.value)


@pytest.mark.parametrize("types", [(torch.float32,), (torch.float16, torch.float32)])
def test_a_gradient_that_is_changed_beside_others_is_noticed(types):
    """Norms of a large gradient are beyond fp16."""
    parameters = [nn.Parameter(torch.full((4,), 1e3, dtype=kind)) for kind in types]
    watch = GradientWatch(parameters, lambda: None)

    def backward() -> None:
        sum((p.float() * 1e3).square().sum() for p in parameters[-1:]).backward()
        for p in parameters[:-1]:
            p.sum().backward()

    for factor, is_changed in ((1.0, False), (0.5, True), (float("nan"), False)):
        for p in parameters:
            p.grad = None
        backward()
        parameters[-1].grad.data.mul_(factor)
        assert watch.are_changed() is is_changed
    watch.close()


def train_with_scaler(
    unscales: bool, overflows: bool, fused: bool, of_all_ranks: bool = False
) -> tuple:
    """As torch's recipe for AMP; a batch of the first rank may overflow. (trained, last scale)"""
    algo = make_algo()
    parameters = list(algo.nets["actor"].parameters())
    algo.optimizers = {"actor": torch.optim.Adam(parameters, 1e-2, fused=fused)}
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=100)
    for number, x in enumerate(samples_of_steps(algo, of_all_ranks)):
        if overflows and number == 1 and group.is_main():
            x[0] = 1e200
        algo.optimizers["actor"].zero_grad()
        scaler.scale(algo.nets["actor"](x).square().mean()).backward()
        if unscales:
            scaler.unscale_(algo.optimizers["actor"])
            nn.utils.clip_grad_norm_(parameters, 0.1)
        scaler.step(algo.optimizers["actor"])
        scaler.update()
    return moved(algo), scaler.get_scale()


@pytest.mark.parity
@NEEDS_CPU_FP16
@pytest.mark.parametrize("overflows", [False, True])
@pytest.mark.parametrize("unscales, fused", [(True, False), (False, False), (False, True)])
def test_a_scaler_of_the_host_unscales_the_mean(unscales, fused, overflows, ranks):
    """All ranks leave out a step that overflows on one of them; a fused kernel unscales itself."""
    expected, scale = train_with_scaler(unscales, overflows, fused, of_all_ranks=True)
    assert scale == (4.0 if overflows else 8.0) and expected.isfinite().all()
    for trained, of_rank in ranks.run(train_with_scaler, unscales, overflows, fused):
        assert torch.allclose(trained, expected, rtol=1e-12) and of_rank == scale


class Noting(torch.optim.SGD):
    def step(self, *args, **kwargs):
        return args, kwargs


@NEEDS_CPU_FP16
def test_a_scaler_hands_on_what_a_step_is_given_and_ends_one_that_it_leaves_out():
    algo = make_algo()
    actor, scaler = algo.nets["actor"], torch.amp.GradScaler("cpu")
    optimizer = algo.optimizers["actor"] = Noting(actor.parameters(), 1.0)
    with ExitStack() as undo:
        build(algo, undo)
        for factor, result in ((1.0, ((1,), {"name": 2})), (torch.inf, None)):
            loss = actor(torch.ones(2, 4, dtype=torch.float64)).sum() * factor
            optimizer.zero_grad()
            scaler.scale(optimizer_ddp.of(optimizer).average_in_backward(loss)).backward()
            assert scaler.step(optimizer, 1, name=2) == result
            scaler.update()
        actor(torch.ones(2, 4, dtype=torch.float64)).sum().backward()
        with pytest.raises(WrapError, match="cannot be averaged before its step"):
            optimizer.step()  # not taken with what this rank alone has


def clip_each_step(all_nets: bool, through: bool, of_all_ranks: bool = False) -> torch.Tensor:
    """Clips before each of two optimizers' steps, gradients of all nets or of the one that it
    updates.
    """
    algo = algo_with_sgd(1.0, "actor", "critic")
    nets = {"actor": algo.nets["actor"], "critic": algo.nets["critic"][0]}
    for x in samples_of_steps(algo, of_all_ranks):
        for name, optimizer in algo.optimizers.items():
            loss = nets[name](x[:, : nets[name].in_features]).pow(2).mean()
            averaging = optimizer_ddp.of(optimizer) if through else None
            optimizer.zero_grad()
            (averaging.average_in_backward(loss) if averaging else loss).backward()
            clipped = algo.nets if all_nets else nets[name]
            nn.utils.clip_grad_norm_(clipped.parameters(), CLIPPED)
            optimizer.step()
    return moved(algo)


@pytest.mark.parametrize("through", [True, False])
def test_clipping_the_gradients_of_two_optimizers_together_is_refused(through, ranks):
    """As the error advises, each with its own parameters, they train as one process does."""
    with pytest.raises(RankError) as caught:
        ranks.run(clip_each_step, True, through)
    for word in ("WrapError", "optimizer actor", "clipped with those of another", "no others"):
        assert word in str(caught.value)
    expected = clip_each_step(False, through, of_all_ranks=True)
    for trained in ranks.run(clip_each_step, False, through):
        assert torch.allclose(trained, expected, rtol=1e-12, atol=1e-15)


def zeroed_in_place(of_all_ranks: bool = False) -> torch.Tensor:
    """Plain backward passes into the gradients of the step before."""
    algo = algo_with_sgd(0.1, "actor")
    for x in samples_of_steps(algo, of_all_ranks):
        algo.optimizers["actor"].zero_grad(set_to_none=False)
        algo.nets["actor"](x).pow(2).mean().backward()
        algo.optimizers["actor"].step()
    return moved(algo)


@pytest.mark.parity
def test_gradients_that_are_zeroed_in_place_are_averaged_at_every_step(ranks):
    for trained in ranks.run(zeroed_in_place):
        assert torch.allclose(trained, zeroed_in_place(of_all_ranks=True), rtol=1e-12)


def gradients_by(way: str, loss_of: Callable) -> list:
    """Gradients of three parameters of ones after a pass of `loss_of` them."""
    algo, parts = algo_of([torch.ones(2) for _ in range(3)])
    optimizer, averaged = algo.optimizers["all"], []

    def note() -> None:
        averaged.append([None if p.grad is None else p.grad.tolist() for p in parts])

    with ExitStack() as undo:
        build(algo, undo, way)
        optimizer_ddp.of(optimizer).after_averaging = note
        backprop(optimizer, loss_of(parts), through=way != PLAIN)
    note()
    assert averaged[0] == averaged[1] and len(averaged) == 2
    return averaged[0]


def gradients_each_way(loss_of: Callable) -> list:
    return [gradients_by(way, loss_of) for way in (MESSAGE, DDP, PLAIN)]


def partly_used(parts: list) -> torch.Tensor:
    """Uses the first on all ranks, the second on rank 1 only."""
    return parts[0].sum() + (parts[1].sum() * 4 if group.rank() == 1 else 0)


def of_another_net(parts: list) -> torch.Tensor:
    """Uses the first on rank 0, and none on rank 1."""
    return (torch.ones(2, requires_grad=True) if group.rank() == 1 else parts[0]).sum()


def algo_of(tensors) -> tuple:
    """An algorithm with one optimizer of these parameters; they."""
    parts = nn.ParameterList(map(nn.Parameter, tensors))
    optimizer = torch.optim.SGD(parts.parameters(), 0.5)
    algo = SimpleNamespace(nets=nn.ModuleDict(), optimizers={"all": optimizer}, parts=parts)
    return algo, list(parts)


def test_a_parameter_that_no_rank_uses_has_no_gradient(ranks):
    """Else Adam would continue to move it."""
    for gradients in ranks.run(gradients_each_way, partly_used):
        assert gradients == [[[1, 1], [2, 2], None]] * 3


def test_a_rank_whose_loss_reaches_no_parameter_keeps_no_other_waiting(ranks):
    gradients = ranks.run(gradients_each_way, of_another_net)
    assert gradients == [[[[0.5, 0.5], None, None]] * 3] * 2


def losses_through_ddp() -> list:
    """Of parameters that are not numbers, and of another type."""
    losses = [torch.tensor(value, requires_grad=True) for value in (-0.0, 0.0, 1.1, torch.inf)]
    algo, _ = algo_of([torch.full((2,), torch.nan, dtype=torch.float64)])
    with ExitStack() as undo:
        build(algo, undo, DDP)
        averaging, passed = optimizer_ddp.of(algo.optimizers["all"]), []
        averaging.parallel.register_forward_hook(lambda *_: passed.append(1))
        returned = [averaging.average_in_backward(loss) for loss in losses]
        assert len(passed) == len(losses)
        return [
            (str(a.view(torch.int32)), str(b.view(torch.int32))) for a, b in zip(returned, losses)
        ]


def test_a_loss_passes_through_ddp_with_the_same_bits(ranks):
    for losses in ranks.run(losses_through_ddp):
        for returned, loss in losses:
            assert returned == loss


def mean(batches, loss) -> torch.Tensor:
    return sum(map(loss, batches)) / len(batches)


def two_passes(first, second, batches, average) -> None:
    average(mean(batches, lambda x: (x * first).pow(2).sum())).backward()
    average(mean(batches, lambda x: (x * second).exp().sum())).backward()


def one_graph_twice(first, second, batches, average) -> None:
    loss = average(mean(batches, lambda x: (first * second * x).sum()))
    loss.backward(retain_graph=True)
    loss.backward()


def after_a_local_pass(first, second, batches, average) -> None:
    """As micro-batches: the first is not averaged, and uses more than the last."""
    mean(batches, lambda x: (second * x).pow(3).sum()).backward()
    average(mean(batches, lambda x: (first * x).pow(2).sum())).backward()


def gradient_penalty(first, second, batches, average) -> None:
    """A gradient in the loss, whose own pass must send nothing."""

    def loss(x):
        inner = (first.pow(3) * second.exp() * x).sum()
        (slope,) = torch.autograd.grad(inner, first, create_graph=True)
        return slope.pow(2).sum() + inner

    average(mean(batches, loss)).backward()


class Reentrant(torch.autograd.Function):
    """A backward pass within a backward pass, as of torch's reentrant checkpoint."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.pow(2)

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            x.pow(2).backward(gradient)
        return x.grad


def backward_within_backward(first, second, batches, average) -> None:
    average(mean(batches, lambda x: Reentrant.apply(first * second * x).sum())).backward()


PASSES = [
    two_passes,
    one_graph_twice,
    after_a_local_pass,
    gradient_penalty,
    backward_within_backward,
]


def stepped(passes) -> list:
    """Collective on several ranks: three steps, with two batches in one process; parameters of two
    types of number.
    """
    algo, parts = algo_of([torch.arange(1.0, 3), torch.full((2,), 0.1, dtype=torch.float64)])
    batches, optimizer = torch.tensor([[1.0, 2.0], [3.0, -1.0]]), algo.optimizers["all"]
    with ExitStack() as undo:
        average = lambda loss: loss  # noqa: E731
        if group.world_size() > 1:
            build(algo, undo)
            average = optimizer_ddp.of(optimizer).average_in_backward
            batches = batches[group.rank()][None]
        for _ in range(3):
            optimizer.zero_grad()
            passes(*parts, batches, average)
            nn.utils.clip_grad_norm_(parts, 0.2)
            optimizer.step()
    return [p.detach() for p in parts]


@pytest.mark.parametrize("passes", PASSES)
def test_one_message_averages_every_kind_of_pass(ranks, passes):
    expected = stepped(passes)
    for parts in ranks.run(stepped, passes):
        for value, wanted in zip(parts, expected):
            assert value.dtype == wanted.dtype
            assert torch.allclose(value, wanted, rtol=1e-5)


def warnings_of_torch(filtered: bool) -> tuple[bool, set[str]]:
    """Whether DDP sends more than the optimizer's parameters; what torch warns of."""
    algo, before = make_algo(), torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    with warnings.catch_warnings(record=True) as heard, ExitStack() as undo:
        undo.callback(torch.set_warn_always, before)
        warnings.simplefilter("always")
        if filtered:
            undo.enter_context(parallel.without_false_alarms())
        build(algo, undo, DDP)
        more = any(
            sum(p.numel() for p in averaging.parallel.parameters())
            > sum(p.numel() for p in averaging.reduced)
            for averaging in optimizer_ddp.among(algo)
        )
        step(algo, torch.ones(2, 4, dtype=torch.float64))
    words = {str(one.message) for one in heard if issubclass(one.category, UserWarning)}
    return more, {text[:23] for text in words if "find_unused" in text or "bucket" in text}


def test_a_pass_that_uses_every_parameter_warns_through_python_alone(ranks):
    """A parameter that no pass uses would make DDP wait for the GPU in each."""
    assert ranks.run(warnings_of_torch, False) == [(False, {"find_unused_parameters="})] * 2
    assert ranks.run(warnings_of_torch, True) == [(False, set())] * 2


def beside_a_parallel_net() -> tuple:
    """One optimizer for a parallel net and a plain one: each gradient is averaged once."""
    torch.manual_seed(1)
    nets = nn.ModuleDict({"encoder": nn.Linear(4, 3), "head": nn.Linear(3, 1)})
    parallel.parallelise(nets["encoder"], "ddp", parallel.ddp_options(Options(), nets["encoder"]))
    optimizer = torch.optim.SGD(nets.parameters(), 0.0)
    algo = SimpleNamespace(nets=nets, optimizers={"policy": optimizer})
    x = torch.arange(8.0).view(2, 4)[group.rank()][None]
    with ExitStack() as undo:
        optimizer_ddp.build(algo, Options(), undo)
        averaging = optimizer_ddp.of(optimizer)
        assert [one.shape for one in averaging.reduced] == [(1, 3), (1,)]
        assert optimizer_ddp.reducers(algo) == [parallel.state_of(nets["encoder"]), averaging]
        backprop(optimizer, nets["head"](nets["encoder"](x)).sum())
    expected = nets["head"].weight.detach().T @ torch.arange(8.0).view(2, 4).mean(0)[None]
    head = nets["encoder"](torch.arange(8.0).view(2, 4)).mean(0)
    return (
        torch.allclose(nets["encoder"].weight.grad, expected),
        torch.allclose(nets["head"].weight.grad[0], head),
    )


def test_it_takes_what_parallel_nets_leave(ranks):
    assert ranks.run(beside_a_parallel_net) == [(True, True)] * 2


def test_what_is_outside_the_nets_is_saved_and_put_back():
    algo, other = make_algo(), make_algo()
    with torch.no_grad():
        algo.alpha.fill_(0.5)
    restore_model(other, captured(algo))
    assert other.alpha.item() == 0.5
