"""What `ddp.verify` costs, as a share of a training step.

    torchrun --nproc_per_node=2 -m scripts.bench.verify [--width 64] [--batch 16] [--steps 10]

Trains the host's diffusion UNet (installed robomimic; --width 256 is its default size, 67 M
parameters) on random numbers and times, on the main rank: a step, what verify does at the start, at
each epoch, and at each step. Prints the share for several lengths of an epoch. On a machine with
fewer free cores than ranks the collectives wait for the scheduler, and all figures are too high.
"""

from __future__ import annotations

import argparse
import copy
import time
from types import SimpleNamespace

import torch
from robomimic.models.diffusion_policy_nets import ConditionalUnet1D
from torch import nn

from robomimic_ddp import verify
from robomimic_ddp.distributed import group, host_objects, rng
from robomimic_ddp.distributed.gradients import parallel
from robomimic_ddp.verify.rng_state import Streams

ACTIONS, HORIZON, CONDITION = 10, 16, 64


def make_algo(width: int) -> SimpleNamespace:
    """Nets, optimizer and averages as in the host's diffusion policy."""
    sizes = [width, 2 * width, 4 * width]
    net = ConditionalUnet1D(ACTIONS, CONDITION, diffusion_step_embed_dim=width, down_dims=sizes)
    net = parallel.parallelise(
        net, "ddp", {"gradient_as_bucket_view": True}, "policy.noise_pred_net"
    )
    nets = nn.ModuleDict({"policy": nn.ModuleDict({"noise_pred_net": net})})
    shadow = [parameter.detach().clone() for parameter in nets.parameters()]
    return SimpleNamespace(
        nets=nets,
        ema_nets=copy.deepcopy(nets).requires_grad_(False),
        ema=SimpleNamespace(optimization_step=0, shadow_params=shadow),
        optimizers={"policy": torch.optim.AdamW(nets.parameters(), lr=1e-4)},
    )


def step(algo: SimpleNamespace, batch: int) -> None:
    """One optimizer step, without averages (a host's take longer, so the share is smaller)."""
    net, optimizer = algo.nets["policy"]["noise_pred_net"], algo.optimizers["policy"]
    noisy, times = torch.randn(batch, HORIZON, ACTIONS), torch.randint(0, 100, (batch,))
    optimizer.zero_grad()
    net(noisy, times, global_cond=torch.randn(batch, CONDITION)).pow(2).mean().backward()
    optimizer.step()


def seconds(function, *arguments) -> float:
    """Wall time of one call, begun by all ranks together."""
    group.barrier()
    begin = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with group.process_group("gloo", 600.0):
        torch.manual_seed(0)
        algo = make_algo(arguments.width)
        rng.seed_streams(0, group.rank())
        step(algo, arguments.batch)  # buffers, optimizer state
        plain = min(seconds(step, algo, arguments.batch) for _ in range(arguments.steps))
        verifier = verify.Verifier(algo)
        at_start = seconds(verifier.start) + seconds(step, algo, arguments.batch) - plain
        verifier.epoch_begin(1)
        at_epoch = max(0.0, seconds(step, algo, arguments.batch) - plain)
        with host_objects.unchanged():  # as in a run
            at_epoch += seconds(verifier.end)
            at_epoch += seconds(verifier.epoch_end, 1)
        at_step = min(seconds(Streams.now) for _ in range(100))
        if group.is_main():
            parameters = sum(one.numel() for one in algo.nets.parameters())
            print(
                f"{parameters / 1e6:.1f} M parameters, step {plain:.3f} s; verify: start and first"
            )
            print(
                f"step {at_start:.3f} s, epoch {at_epoch:.3f} s, each step {at_step * 1e6:.0f} us"
            )
            for length in (100, 500, 1000):
                share = (at_epoch / length + at_step) / plain
                print(f"epochs of {length} steps: {100 * share:.2f} % of a step on average")


if __name__ == "__main__":
    main()
