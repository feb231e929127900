"""What the first step proves, what is printed of it, and that later steps do not pay for it."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import ExitStack, redirect_stdout
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.overrides import _get_current_function_mode_stack

from robomimic_ddp import verify
from robomimic_ddp.config.options import Options
from robomimic_ddp.distributed import group, host_algo, rng
from robomimic_ddp.distributed.gradients import comm_hooks, fsdp, optimizer_ddp, parallel
from robomimic_ddp.verify import NOT_PROVEN, gradient_means
from robomimic_ddp.verify.plain_numbers import PlainNumbers
from tests.faults.toy_run import STEPS, ToyJob, train
from tests.ranks.toy import loss_of, make_algo
from tests.versions import NEEDS_FSDP, require

MEAN, FIRST = "gradients are the mean over 2 ranks", "noise differs"
LAST = "verified, epoch 1: weights, averages, steps equal on 2 ranks; samples, random states"


def clips(job: Any) -> None:
    if job.step_number == 0:
        nn.utils.clip_grad_norm_(job.algo.nets.parameters(), 1e-3)


def learns_nothing(job: Any) -> None:
    job.loss = lambda batch: (job.algo.predict(batch) * 0).sum()


def told(options: dict, plants: dict[str, Callable]) -> list[str]:
    """Collective: lines that begin with "verified", on this rank."""
    job = ToyJob(plants)
    job.options = options
    with redirect_stdout(io.StringIO()) as output:
        train(job)
    return [line for line in output.getvalue().splitlines() if line.startswith("verified")]


@pytest.mark.parametrize(
    "options, plants, first",
    [
        ({}, {}, f"verified: {MEAN}; {FIRST}"),
        ({"mode": "fsdp"}, {}, f"verified: {MEAN}; {FIRST}"),
        ({"comm": "fp16"}, {}, f"verified: {MEAN}; {FIRST}"),
        ({}, {"backward": clips}, f"verified: {MEAN}; {FIRST}"),
        (
            {},
            {"construction": learns_nothing},
            "verified: gradients equal on 2 ranks (mean not proven: all zero); "
            "random states differ",
        ),
        ({"verify": "false"}, {}, None),
    ],
)
def test_what_is_proven_is_printed_on_the_main_rank(options, plants, first, ranks):
    require(options)
    main, other = ranks.run(told, options, plants)
    assert other == []
    assert main == ([] if first is None else [first, f"{LAST} differ"])
    assert all(len(line) <= 100 for line in main)


def messages_of_steps(verify: str) -> list[tuple[int, int]]:
    """Collective: for each step but the first, what it sends, and watches that are left."""
    sent, seen = [], []

    def stepped(job: Any) -> None:
        hooks = sum(len(one._backward_hooks or ()) for one in job.algo.nets.parameters())
        seen.append((len(sent), hooks + len(_get_current_function_mode_stack())))

    job = ToyJob({"step": stepped})
    job.options = {"verify": verify}
    with ExitStack() as stack:
        for name in ("all_gather", "all_reduce", "broadcast"):
            plain = getattr(dist, name)

            def counted(*args: Any, plain: Callable = plain, **kwargs: Any) -> Any:
                sent.append(plain.__name__)
                return plain(*args, **kwargs)

            stack.enter_context(mock.patch.object(dist, name, counted))
        train(job)
    counts = [count for count, _ in seen]
    after = [later - before for before, later in zip(counts[1:], counts[2:])]
    return list(zip(after, (watches for _, watches in seen[2:])))


def test_steps_after_the_first_send_and_watch_nothing_for_it(ranks):
    proven, plain = (ranks.run(messages_of_steps, verify) for verify in ("true", "false"))
    assert proven == plain and len(plain[0]) == STEPS - 2
    assert {watches for steps in proven for _, watches in steps} == {0}


def compared(comm: str, happens: str) -> tuple:
    """Collective: the result of one comparison of gradients."""
    algo = make_algo()
    net, (optimizer,) = algo.nets["policy"]["noise_pred_net"], algo.optimizers.values()
    for _, module in parallel.parallel_among(host_algo.named_modules(algo)):
        parallel.state_of(module).build(module)
    comm_hooks.communicate(optimizer_ddp.reducers(algo), Options(comm=comm))
    means = gradient_means.watch(algo, optimizer, comm)
    batch = torch.randn(8, 4)
    for parameter in net.parameters() if happens == "halved" else ():
        parameter.register_hook(lambda gradient: gradient / 2)
    if happens.startswith("noise"):  # as kernels that do not repeat their bits have
        size = float(happens.partition("=")[2])
        net[1].register_full_backward_hook(
            lambda module, before, after: tuple(
                one + size * one * torch.randn(8, 8) for one in before
            )
        )
    for _ in range(2):  # gradients of the first pass are dropped
        optimizer.zero_grad()
        loss = loss_of(algo, batch)
        if happens == "overflow":
            loss = loss * float("inf" if group.rank() else "1")
        loss.backward(retain_graph=True)
    if happens == "grad":
        torch.autograd.grad(loss, list(net.parameters()))
    why_not, complaints = means.compare()
    means.stop()
    return why_not, [text.partition(",")[0] for text in complaints]


@pytest.mark.parametrize("comm", ["none", "bf16"])
@pytest.mark.parametrize(
    "happens, result",
    [
        ("nothing", (None, [])),
        ("grad", (None, [])),
        ("noise=1e-7", (None, [])),
        ("noise=1e-3", (None, [])),
        ("halved", (None, ["the gradient of nets.policy.noise_pred_net.0.weight"])),
        ("overflow", (gradient_means.NOT_FINITE, [])),
    ],
)
def test_gradients_are_compared_with_the_mean(comm, happens, result, ranks):
    if comm == "bf16" and not ranks.run(comm_hooks.sends_bf16, "cpu")[0]:
        pytest.skip("this torch's gloo sends no bf16")
    assert ranks.run(compared, comm, happens) == [result] * 2


def first_step_on_another_net(many: bool) -> dict:
    """Collective: what is proven where the loss of rank 1 reaches no parameter of the optimizer."""
    torch.manual_seed(0)
    nets = nn.ModuleDict({"trained": nn.Linear(4, 4), "other": nn.Linear(4, 4)})
    optimizer = torch.optim.SGD(nets["trained"].parameters(), 0.1)
    algo = SimpleNamespace(nets=nets, optimizers={"policy": optimizer})
    size = 0 if many else optimizer_ddp.FLAT_BYTES
    with ExitStack() as undo:
        with mock.patch.object(optimizer_ddp, "FLAT_BYTES", size):
            optimizer_ddp.build(algo, Options(), undo)
        rng.seed_streams(0, group.rank())
        verifier = verify.Verifier(algo)
        verifier.start()
        undo.callback(verifier.stop)
        averaging = optimizer_ddp.of(optimizer)
        net = nets["other" if group.rank() == 1 else "trained"]
        averaging.average_in_backward(net(torch.randn(8, 4)).pow(2).mean()).backward()
        optimizer.step()
        assert averaging.after_averaging is None, "later steps read sums for nothing"
    return verifier.proven


@pytest.mark.parametrize("many", [False, True])
def test_a_rank_whose_loss_reaches_no_parameter_gets_the_mean_too(many, ranks):
    assert ranks.run(first_step_on_another_net, many) == [dict.fromkeys(NOT_PROVEN, True)] * 2


def compared_in_parts(happens: str) -> tuple:
    """Collective: the result under FSDP, of two backward passes after two forwards each."""
    algo = make_algo("fsdp")
    fsdp.shard(algo, Options(mode="fsdp"), "cpu")
    torch.manual_seed(group.rank())  # gradients differ, so that the mean is that of no rank
    for parameter in algo.nets.parameters() if happens == "halved" else ():
        parameter.register_post_accumulate_grad_hook(lambda p: fsdp.local(p.grad).div_(2))
    means = gradient_means.watch(algo, algo.optimizers["policy"], "none")
    for _ in range(2):
        (loss_of(algo, torch.randn(8, 4)) + loss_of(algo, torch.randn(8, 4))).backward()
    why_not, complaints = means.compare()
    means.stop()
    return why_not, [text.partition(", is not")[0] for text in complaints]


@NEEDS_FSDP
@pytest.mark.parametrize(
    "happens, complaints",
    [
        ("nothing", []),
        ("halved", ["the gradient of nets.policy.obs_encoder.layer.weight, reduced by FSDP"]),
    ],
)
def test_parts_of_gradients_are_compared_with_the_mean(happens, complaints, ranks):
    assert ranks.run(compared_in_parts, happens) == [(None, complaints)] * 2


class Counting:
    """An algorithm that counts steps, and the actions that it plays."""

    def __init__(self) -> None:
        self.steps = self.skipped = self.played = 0
        self.loss, self.best_rank = 0.0, group.rank()


def after_epochs(extra_steps: int) -> list[dict]:
    """Collective: what is compared before and after each of two epochs, with rollouts between."""
    algo, found = Counting(), []
    numbers = PlainNumbers(algo)
    for _ in range(2):
        found.append(numbers.items())
        numbers.before_step()
        algo.steps += 1
        algo.skipped += extra_steps * (1 - group.rank())
        algo.loss = 1.0 + group.rank()
        numbers.after_step()
        found.append(numbers.items())
        algo.played += 1 - group.rank()
        algo.steps += extra_steps * group.rank()
        algo.skipped += extra_steps * group.rank()
    return found


def test_what_rollouts_count_is_left_out_and_what_training_counts_is_not(ranks):
    names = ("steps", "skipped", "played", "loss")
    steps, skipped, played, loss = (f"plain number self.{name}" for name in names)
    first = {steps: "0", skipped: "0", played: "0", loss: "0.0"}
    changed = {steps: "1", skipped: "0", loss: "changed in training"}
    expected = [first, {**changed, played: "0"}, changed]
    assert ranks.run(after_epochs, 0) == [[*expected, {**changed, steps: "2"}]] * 2
    extra = [items[2] for items in ranks.run(after_epochs, 1)]
    assert extra == [{**changed, skipped: "1"}, {**changed, steps: "2", skipped: "1"}]
