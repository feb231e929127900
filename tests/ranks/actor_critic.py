"""A small stand-in for an actor-critic algorithm: several optimizers, whose losses share nets."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import torch
from torch import nn

from robomimic_ddp.distributed.gradients import optimizer_ddp


def make_algo(alpha_is_parameter: bool = True) -> SimpleNamespace:
    """An actor, two critics with targets, and a temperature that is in no net."""
    torch.manual_seed(0)
    critics = nn.ModuleList(nn.Linear(3, 1).double() for _ in range(2))
    nets = {"actor": nn.Linear(4, 3).double(), "critic": critics, "target": copy.deepcopy(critics)}
    alpha = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    alpha = nn.Parameter(alpha.detach()) if alpha_is_parameter else alpha
    optimizers = {
        "actor": torch.optim.Adam(nets["actor"].parameters(), 1e-2),
        "critic": [torch.optim.Adam(critic.parameters(), 1e-2) for critic in critics],
        "alpha": torch.optim.Adam([alpha], 1e-2),
    }
    return SimpleNamespace(nets=nn.ModuleDict(nets), optimizers=optimizers, alpha=alpha)


def backprop(optimizer, loss, retain_graph: bool = False, through: bool = True) -> None:
    """As the host's backprop_for_loss."""
    averaging = optimizer_ddp.of(optimizer)
    loss = loss if averaging is None or not through else averaging.average_in_backward(loss)
    optimizer.zero_grad()
    loss.backward(retain_graph=retain_graph)
    optimizer.step()


def step(algo, x, through: bool = True) -> None:
    """Losses as those of actor-critic methods: each reaches nets of other optimizers, the critics
    share one graph, the temperature is stepped after a plain backward().
    """
    nets, optimizers = algo.nets, algo.optimizers
    actions = torch.tanh(nets["actor"](x))
    values = [critic(actions) for critic in nets["critic"]]
    with torch.no_grad():
        wanted = [target(actions.detach()) + x[:, :1] for target in nets["target"]]
    losses = [
        (value - want).pow(2).mean() + algo.alpha.exp().squeeze() * value.mean()
        for value, want in zip(values, wanted)
    ]
    optimizers["alpha"].zero_grad()
    (algo.alpha * (actions.detach().sum(1).mean() - 1)).sum().backward()
    optimizers["alpha"].step()
    losses = [loss.clone() for loss in losses]
    for index, (loss, optimizer) in enumerate(zip(losses, optimizers["critic"])):
        backprop(optimizer, loss, retain_graph=index == 0, through=through)
    value = nets["critic"][0](torch.tanh(nets["actor"](x))).mean()
    backprop(optimizers["actor"], -value, through=through)
    with torch.no_grad():
        for target, net in zip(nets["target"].parameters(), nets["critic"].parameters()):
            target.lerp_(net, 0.1)
