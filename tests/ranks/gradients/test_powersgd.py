"""How gradients travel on real ranks: what is sent, and that ranks stay equal, resumed or not."""

from __future__ import annotations

import contextlib
import io
import sys
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

from robomimic_ddp.checkpoint import FoundRun, state_file
from robomimic_ddp.config.options import Options
from robomimic_ddp.distributed import group, host_algo, rng
from robomimic_ddp.distributed.gradients import comm_hooks, parallel
from robomimic_ddp.training.state import state_saver
from tests.ranks import toy
from tests.ranks.pool import RankError
from tests.ranks.running import running
from tests.ranks.toy import make_algo
from tests.versions import gloo_sends_bf16

START = 3


def sending(algo, **options):
    """Collective: builds the algo's parallel nets, which send as the options say; the plan's line.
    PowerSGD begins after START steps.
    """
    nets = parallel.parallel_among(host_algo.named_modules(algo))
    for _, net in nets:
        parallel.state_of(net).build(net)
    with mock.patch.object(comm_hooks, "POWERSGD_START", START):
        return comm_hooks.communicate(
            [parallel.state_of(net) for _, net in nets], Options(**options)
        )


def bytes_of_steps():
    """Collective: (the plan's line, bytes given to all-reduces in each step, the weights)."""
    algo, sent = make_algo(), []
    line = sending(algo, comm="powersgd:1")
    real = dist.all_reduce

    def counted(tensor, *args, **kwargs):
        sent[-1] += tensor.numel() * tensor.element_size()
        return real(tensor, *args, **kwargs)

    torch.manual_seed(group.rank())
    with mock.patch.object(dist, "all_reduce", counted):
        for _ in range(START + 2):
            sent.append(0)
            toy.step(algo, torch.randn(4, 4))
    return line, sent, torch.cat([p.detach().flatten() for p in algo.nets.parameters()])


def test_fewer_bytes_are_sent_after_the_start_and_ranks_stay_equal(ranks):
    (line, sent, weights), (_, _, others) = ranks.run(bytes_of_steps)
    size = 4 * weights.numel()
    assert sent[:START] == [size] * START
    assert sent[START] == sent[START + 1] < size
    assert line == (
        f"gradients: {size / 1e6:.3g} MB a step from each rank, in fp32; compressed by PowerSGD "
        f"of rank 1 after {START} steps, in a resumed run too, since its error feedback is "
        "not saved"
    )
    assert torch.equal(weights, others), "ranks parted"


def asked_by(module):
    """A stand-in for torch's questions that says yes to `module` alone."""
    return lambda: sys._getframe(1).f_globals["__name__"].endswith(module)


def bytes_of_steps_beside_a_gpu():
    """Collective: (bytes of steps, whether tensors of the CPU and of a GPU travel over gloo)."""
    with mock.patch.object(torch.cuda, "is_available", asked_by("powerSGD_hook")):
        sent = bytes_of_steps()[1]
    return sent, [group.sends_over_gloo(torch.device(kind)) for kind in ("cpu", "cuda")]


def test_training_on_the_cpu_beside_a_gpu_and_a_gpu_over_gloo(ranks):
    """torch's hook waits for a GPU wherever there is one; over gloo it waits for each bucket."""
    expected = ranks.run(bytes_of_steps)[0][1]
    assert ranks.run(bytes_of_steps_beside_a_gpu) == [(expected, [True, True])] * 2


class GPU:
    """The generator of a GPU, of which only seeding and its state are looked at."""

    state = torch.zeros(16, dtype=torch.uint8)

    def seed(self, seed):
        self.state = torch.full((16,), seed % 256, dtype=torch.uint8)


def noise_after_compression(drawn_by_hook):
    """Collective: the states of the generators of CPU and GPU before and after compressed steps,
    where torch's hook seeds all of them, alike on all ranks: as it draws a bucket's first factors.
    """
    algo, gpu, real = make_algo(), GPU(), powerSGD_hook.powerSGD_hook
    sending(algo, comm="powersgd:1")
    gpu.seed(group.rank() + 1)
    before = gpu.state.clone()

    def seeding(state, bucket):
        if drawn_by_hook and state.iter >= START and bucket.index() not in state.p_memory_dict:
            gpu.seed(99)
            torch.manual_seed(99)
        return real(state, bucket)

    torch.manual_seed(group.rank())
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (powerSGD_hook, "powerSGD_hook", seeding),
            (torch.cuda, "is_available", asked_by("comm_hooks")),
            (torch.cuda, "is_initialized", asked_by("comm_hooks")),
            (torch.cuda, "device_count", lambda: 1),
            (torch.cuda, "get_rng_state", lambda device=0: gpu.state),
            (torch.cuda, "set_rng_state", lambda state, device=0: setattr(gpu, "state", state)),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        for _ in range(START + 2):
            toy.step(algo, torch.randn(4, 4))
    return torch.equal(gpu.state, before), torch.get_rng_state().tolist()


def test_every_random_stream_is_left_as_it_was(ranks):
    plain, seeded = (ranks.run(noise_after_compression, seeds) for seeds in (False, True))
    assert plain == seeded and all(is_kept for is_kept, _ in seeded)
    assert seeded[0][1] != seeded[1][1], "ranks would draw the same noise"


def line(comm):
    """Collective."""
    return sending(make_algo(), comm=comm)


@pytest.mark.parametrize(
    "comm, words", [("none", "in fp32"), ("bf16", "in bf16 (in place of"), ("fp16", "in fp16")]
)
def test_every_kind_of_communication_tells_its_bytes(ranks, comm, words):
    if comm == "bf16" and not all(ranks.run(gloo_sends_bf16)):
        with pytest.raises(RankError, match="ddp.comm=bf16 is not possible over gloo with torch"):
            ranks.run(line, comm)
        pytest.skip("this torch's gloo sends no bf16, so the option is refused")
    zero, one = ranks.run(line, comm)
    assert zero == one and zero.startswith("gradients: ") and words in zero


def train(directory, epochs, found=None, **options):
    """Collective: what api.epochs does; (digest of the weights, what was said)."""
    printed = io.StringIO()
    with running(directory, found, **options) as run, contextlib.redirect_stdout(printed):
        algo = make_algo()
        sending(algo, **options)
        rng.seed_streams(7, group.rank())
        saver = state_saver.StateSaver(run, algo)
        for epoch in range((saver.restore() or 0) + 1, epochs + 1):
            toy.step(algo, torch.randn(4, 4))
            saver.epoch_end(epoch)
    return state_file.digest(dict(algo.nets.state_dict())), printed.getvalue()


def resume(directory, epochs, comm):
    """Collective."""
    return train(directory, epochs, FoundRun(directory, "state"), comm=comm)


def start(directory, epochs, comm):
    """Collective."""
    return train(directory, epochs, comm=comm)


@pytest.mark.parametrize("world", [2, 3])
def test_error_feedback_begins_again_at_a_resume(world, ranks, tmp_path):
    """After as many complete steps as at the start: DDP rebuilds its buckets in the first one."""
    ranks.run(start, tmp_path, START + 2, "powersgd:1", world_size=2)
    resumed = ranks.run(resume, tmp_path, 2 * START + 4, "powersgd:2", world_size=world)
    assert len({digest for digest, _ in resumed}) == 1, "ranks parted"
    assert "ddp.comm: powersgd:1 -> powersgd:2" in resumed[0][1]


@pytest.mark.bad_input
def test_fp16_is_refused_with_powersgd(ranks):
    with pytest.raises(RankError, match="ddp.comm=powersgd:1 does not go with ddp.precision=fp16"):
        ranks.run(in_fp16)


def in_fp16():
    """Collective."""
    sending(make_algo(), comm="powersgd:1", precision="fp16")
