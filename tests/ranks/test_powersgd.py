"""PowerSGD on real ranks: what is sent, what is kept, and a run that resumes to the bit."""

from __future__ import annotations

import contextlib
import io
import sys
from dataclasses import replace
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from robomimic_ddp.checkpoint import STATE, Found, state_file
from robomimic_ddp.checkpoint.state_file import read_file
from robomimic_ddp.config.options import Options
from robomimic_ddp.distributed import comm_hooks, group, host_algo, parallel, rng, tree_collectives
from robomimic_ddp.errors import PlanError
from robomimic_ddp.training import state_saver, step
from tests.ranks import toy
from tests.ranks.pool import RankError
from tests.ranks.test_state_saver import running
from tests.ranks.toy import make_algo
from tests.versions import gloo_sends_bf16

START = 3


def compressed(algo, **changes):
    """Collective: builds the algo's parallel nets, which send as the options say."""
    values = Options(**{"comm": "powersgd:1", "powersgd_start": START, **changes})
    nets = parallel.parallel_among(host_algo.named_modules(algo))
    for name, net in nets:
        parallel.state_of(net).name = name
        parallel.state_of(net).build(net)
    return step.communicate([parallel.state_of(net) for _, net in nets], values)


def count_bytes():
    """Collective: (the plan's line, bytes that the plan tells, bytes given to all-reduces in each
    step, whether an error was kept).
    """
    algo = make_algo()
    communication = compressed(algo)
    sent = []
    real = dist.all_reduce

    def counted(tensor, *args, **kwargs):
        sent[-1] += tensor.numel() * tensor.element_size()
        return real(tensor, *args, **kwargs)

    torch.manual_seed(group.rank())
    with mock.patch.object(dist, "all_reduce", counted):
        for _ in range(START + 2):
            sent.append(0)
            toy.step(algo, torch.randn(4, 4))
    kept = [one.errors() for one in communication.powersgd.values()]
    weights = torch.cat([one.detach().flatten() for one in algo.nets.parameters()])
    return communication.line, communication.bytes_per_step, sent, kept, weights


def test_fewer_bytes_are_sent_and_the_plan_tells_how_many(ranks):
    (line, reported, sent, kept, zero), (_, _, _, other_kept, one) = ranks.run(count_bytes)
    numbers = zero.numel()
    assert sent[:START] == [4 * numbers] * START
    assert sent[START:] == [reported] * 2 and reported < 4 * numbers
    assert line == (
        f"gradients: {4 * numbers / 1e6:.3g} MB a step from each rank, in fp32; after step {START} "
        f"{reported / 1e6:.3g} MB, by PowerSGD of rank 1"
    )
    assert torch.equal(zero, one), "ranks parted"
    assert all(error.abs().max() > 0 for errors in kept for error in errors.values())
    assert not torch.equal(kept[0][0], other_kept[0][0]), "errors are each rank's own"


def beside_a_gpu():
    """Collective: (what is sent in each step, as `count_bytes` counts; whether tensors of the CPU
    and of a GPU travel over gloo here).
    """

    def asked_by_the_hook():
        return sys._getframe(1).f_globals["__name__"].endswith("powerSGD_hook")

    with mock.patch.object(torch.cuda, "is_available", asked_by_the_hook):
        sent = count_bytes()[2]
    return sent, [group.sends_over_gloo(torch.device(kind)) for kind in ("cpu", "cuda")]


def test_training_on_the_cpu_beside_a_gpu_and_a_gpu_over_gloo(ranks):
    """torch's hook waits for a GPU wherever there is one; over gloo it waits for each bucket."""
    expected = ranks.run(count_bytes)[0][2]
    assert ranks.run(beside_a_gpu) == [(expected, [True, True])] * 2


def lines(comm):
    """Collective."""
    return compressed(make_algo(), comm=comm).line


@pytest.mark.parametrize(
    "comm, words", [("none", "in fp32"), ("bf16", "in bf16 (in place of"), ("fp16", "in fp16")]
)
def test_every_kind_of_communication_tells_its_bytes(ranks, comm, words):
    if comm == "bf16" and not all(ranks.run(gloo_sends_bf16)):
        with pytest.raises(RankError, match="ddp.comm=bf16 is not possible over gloo with torch"):
            ranks.run(lines, comm)
        pytest.skip("this torch's gloo sends no bf16, so the option is refused")
    reported = ranks.run(lines, comm)
    assert (
        reported[0] == reported[1]
        and reported[0].startswith("gradients: ")
        and words in reported[0]
    )


def train(directory, epochs, found=None, **changes):
    """Collective: what api.epochs does; (digest of the weights, errors left, what was said)."""
    printed = io.StringIO()
    asked = {"comm": "powersgd:1", "powersgd_start": START, **changes}
    with running(directory, found, **asked) as run, contextlib.redirect_stdout(printed):
        algo = make_algo()
        run.communication = compressed(algo, **changes)
        rng.seed_streams(7, group.rank())
        saver = state_saver.StateSaver(run, algo)
        finished = saver.restore() or 0
        at_start = [one.errors() for one in run.communication.powersgd.values()]
        iters = {one.state.iter for one in run.communication.powersgd.values()}
        for epoch in range(finished + 1, epochs + 1):
            toy.step(algo, torch.randn(4, 4))
            saver.epoch_end(epoch)
        return state_file.digest(dict(algo.nets.state_dict())), at_start, printed.getvalue(), iters


@pytest.fixture
def folders(tmp_path):
    for name in ("whole", "part"):
        (tmp_path / name).mkdir()
    return tmp_path / "whole", tmp_path / "part"


@pytest.mark.parametrize("world, finished", [(2, 5), (3, 5), (2, 2)])
def test_a_run_resumes_at_the_bit(world, finished, ranks, folders):
    """In the midst of compressed steps, and before they begin."""
    whole, part = folders
    expected = ranks.run(train, whole, 8, world_size=world)
    ranks.run(train, part, finished, world_size=world)
    resumed = ranks.run(train, part, 8, Found(part, "state"), world_size=world)
    assert [one[0] for one in resumed] == [one[0] for one in expected]
    assert "PowerSGD" not in resumed[0][2]
    if finished > START:
        saved = read_file(part / STATE)["powersgd"]
        assert len(saved["errors"]) == world and saved["common"]


def test_without_the_errors_it_would_not_be_the_same_run(ranks, folders):
    whole, part = folders
    expected = ranks.run(train, whole, 8)
    ranks.run(train, part, 5)
    changed = {"comm": "powersgd"}
    resumed = ranks.run(train_with, part, 8, changed)
    assert (
        "PowerSGD starts again, since ddp.comm has changed from powersgd:1 to powersgd"
        in resumed[0][2]
    )
    assert resumed[0][0] == resumed[1][0] != expected[0][0]
    assert [one[3] for one in resumed] == [{START - 2}] * 2, "step 1 lays out buckets again"


def train_with(directory, epochs, changes):
    """Collective."""
    return train(directory, epochs, Found(directory, "state"), **changes)


def test_another_number_of_ranks_loses_nothing_of_the_mean(ranks, folders):
    part = folders[1]
    ranks.run(train, part, 5)
    saved = read_file(part / STATE)["powersgd"]["errors"]
    resumed = ranks.run(train, part, 7, Found(part, "state"), world_size=3)
    assert len({one[0] for one in resumed}) == 1, "ranks parted"
    assert "each rank begins with the mean of what PowerSGD had not sent yet" in resumed[0][2]
    for number, name in enumerate(saved[0]):
        for index, error in saved[0][name].items():
            before = (error + saved[1][name][index]) / 2
            after = torch.stack([one[1][number][index] for one in resumed]).mean(0)
            torch.testing.assert_close(after, before)


def test_from_whole_gradients_and_back(ranks, folders):
    part = folders[1]
    ranks.run(train_with_fresh, part, 4, {"comm": "none"})
    resumed = ranks.run(train_with, part, 8, {})
    assert "PowerSGD starts again, since the saved run sent whole gradients" in resumed[0][2]
    assert resumed[0][0] == resumed[1][0]
    back = ranks.run(train_with, part, 9, {"comm": "none"})
    assert "what PowerSGD had not sent yet is dropped" in back[0][2]


def train_with_fresh(directory, epochs, changes):
    """Collective."""
    return train(directory, epochs, **changes)


def brought_around():
    """Collective: nests of other sizes on each rank, to the main rank and back."""
    rank = group.rank()
    own = {"a": [torch.full((rank + 1,), rank)], "b": rank, "none": torch.zeros(0)}
    gathered = tree_collectives.gathered(own)
    assert (gathered is None) == (rank > 0)
    back = tree_collectives.scattered(gathered)
    assert torch.equal(back["a"][0], own["a"][0]) and back["b"] == rank
    return True


def test_nests_of_each_rank_travel(ranks):
    assert all(ranks.run(brought_around, world_size=3))


@pytest.mark.bad_input
@pytest.mark.parametrize("changes", [{"static_graph": True}, {"precision": "fp16"}], ids=str)
def test_what_does_not_go_with_it_is_refused(changes):
    values = replace(Options(comm="powersgd"), **changes)
    with pytest.raises(PlanError, match="ddp.comm=powersgd does not go with ddp"):
        comm_hooks._require_possible(values)
