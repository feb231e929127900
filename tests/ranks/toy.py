"""A small stand-in for the host's Algo: two nets as in the diffusion policy, an averaged copy, one
optimizer.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace

import torch
from torch import nn

from robomimic_ddp.config.options import Options
from robomimic_ddp.distributed.gradients import parallel


class Encoder(nn.Module):
    """Has a buffer, as SpatialSoftmax does: DDP broadcasts buffers, so a lone forward through it
    would wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 6)
        self.register_buffer("grid", torch.linspace(-1, 1, 6))

    def forward(self, x):
        return self.layer(x) + self.grid


def make_algo(mode="ddp", seed=0, encoder_has_parameters=True, batch_norm=False):
    """nets = {"policy": {"obs_encoder", "noise_pred_net"}}, made parallel by `mode` unless that is
    "single"; equal on every rank.
    """
    torch.manual_seed(seed)
    encoder = Encoder() if encoder_has_parameters else nn.Identity()
    width = 6 if encoder_has_parameters else 4
    middle = nn.BatchNorm1d(8) if batch_norm else nn.Tanh()
    head = nn.Sequential(nn.Linear(width, 8), middle, nn.Linear(8, 4))
    parts = {"obs_encoder": encoder, "noise_pred_net": head}
    for name, net in parts.items() if mode != "single" else ():
        parallel.parallelise(net, mode, parallel.ddp_options(Options(), net), f"policy.{name}")
    nets = nn.ModuleDict({"policy": nn.ModuleDict(parts)})
    optimizer = torch.optim.AdamW(nets["policy"].parameters(), lr=1e-2)
    ema_nets = copy.deepcopy(nets).requires_grad_(False)
    return SimpleNamespace(
        nets=nets, optimizers={"policy": optimizer}, ema=SimpleNamespace(), ema_nets=ema_nets
    )


def loss_of(algo, x):
    """Mean squared prediction of fresh noise: uses the rank's random stream, as the diffusion loss
    does.
    """
    policy = algo.nets["policy"]
    return (
        (policy["noise_pred_net"](policy["obs_encoder"](x)) - torch.randn(len(x), 4)).pow(2).mean()
    )


def step(algo, x):
    """One optimizer step on batch x [B, 4]; the loss."""
    optimizer = algo.optimizers["policy"]
    optimizer.zero_grad()
    loss = loss_of(algo, x)
    loss.backward()
    optimizer.step()
    return loss.item()
