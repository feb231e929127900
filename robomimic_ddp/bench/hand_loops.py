"""Training loops as people write them by hand for DDP, accelerate and Lightning Fabric."""

from __future__ import annotations

import copy
from typing import Any, Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from robomimic_ddp.bench.loops import Loop
from robomimic_ddp.bench.tensors import kept

_POWER, _MOST_DECAY = 0.75, 0.9999


class Policy(nn.Module):
    """The host's two nets as one module, as one writes it for DDP."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder = model.nets["policy"]["obs_encoder"]
        self.unet = model.nets["policy"]["noise_pred_net"]

    def forward(self, obs: Any, noisy: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
        return predicted(self.encoder, self.unet, obs, noisy, timesteps)


def predicted(encoder: Any, unet: Any, obs: Any, noisy: Any, timesteps: Any) -> torch.Tensor:
    """The noise in `noisy` [B, Tp, A], as the host's train_on_batch asks its nets for it."""
    import robomimic.utils.tensor_utils as TensorUtils

    inputs = {"obs": obs, "goal": None}
    features = TensorUtils.time_distributed(inputs, encoder, inputs_as_kwargs=True)
    return unet(noisy, timesteps, global_cond=features.flatten(start_dim=1))


class HandLoop(Loop):
    """What the hand-written loops share. `backward`: of a loss."""

    set_to_none = True

    def __init__(self, model: Any, batch: dict[str, Any]) -> None:
        super().__init__(model, batch)
        self.steps = 0
        group = model.optimizers["policy"].param_groups[0]
        self.settings = {"lr": group["lr"], "weight_decay": group["weight_decay"]}
        self.backward: Callable = lambda loss: loss.backward()
        self.averaged: list[torch.Tensor] = []
        model.ema = model.ema_nets = None  # the host's own averages, which these do not use
        self.make()

    def make(self) -> None:
        """Sets `root` (all nets), `predict` and `optimizer`."""
        raise NotImplementedError

    def average(self) -> None:
        """Moves the averaged copy towards the parameters."""
        raise NotImplementedError

    def step(self) -> float:
        """Collective: the loss."""
        batch = self.model.process_batch_for_training(self.next_batch())
        batch = self.model.postprocess_batch_for_training(batch, obs_normalization_stats=None)
        actions, scheduler = batch["actions"], self.model.noise_scheduler
        noise = torch.randn(actions.shape)
        timesteps = torch.randint(0, scheduler.config.num_train_timesteps, (len(actions),))
        noisy = scheduler.add_noise(actions, noise, timesteps)
        loss = F.mse_loss(self.predict(batch["obs"], noisy, timesteps), noise)
        self.optimizer.zero_grad(set_to_none=self.set_to_none)
        self.backward(loss)
        self.optimizer.step()
        self.steps += 1
        self.average()
        return loss.item()

    def decay(self) -> float:
        """Of the average, after `steps` steps."""
        return min(_MOST_DECAY, 1 - (1 + self.steps) ** -_POWER)

    def parallel(self) -> list[DistributedDataParallel]:
        """The DDP objects of the nets that learn."""
        return [one for one in self.root.modules() if isinstance(one, DistributedDataParallel)]

    def copies(self) -> list[DistributedDataParallel]:
        """DDP objects of the averaged copy."""
        return []

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        """What stays in memory between steps, by kind."""
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        return kept(self.root, optimizer, self.averaged, [*self.parallel(), *self.copies()])


class HandWritten(HandLoop):
    """As one who has measured writes it: one DDP, gradients in its buckets, fused AdamW, the
    averages in one pass.
    """

    def make(self) -> None:
        dist.init_process_group("gloo")
        self.root = self.predict = DistributedDataParallel(
            Policy(self.model), gradient_as_bucket_view=True
        )
        self.optimizer = torch.optim.AdamW(self.root.parameters(), fused=True, **self.settings)
        self.averaged = [one.detach().clone() for one in self.root.parameters()]

    @torch.no_grad()
    def average(self) -> None:
        parameters = list(self.root.parameters())
        torch._foreach_lerp_(self.averaged, parameters, 1 - self.decay())


class Tutorial(HandLoop):
    """As tutorials have it: each net in a DDP, a deep copy of both for the averages, the defaults
    of AdamW, gradients set to zero.
    """

    set_to_none = False

    def make(self) -> None:
        dist.init_process_group("gloo")
        policy = Policy(self.model)
        nets = {"encoder": policy.encoder, "unet": policy.unet}
        for name, net in nets.items():
            if any(one.requires_grad for one in net.parameters()):
                nets[name] = DistributedDataParallel(net)
        self.root = nn.ModuleDict(nets)
        self.copied = copy.deepcopy(self.root)
        self.averaged = list(self.copied.parameters())
        self.optimizer = torch.optim.AdamW(self.root.parameters(), **self.settings)

    def predict(self, obs: Any, noisy: torch.Tensor, timesteps: torch.Tensor) -> torch.Tensor:
        return predicted(self.root["encoder"], self.root["unet"], obs, noisy, timesteps)

    def copies(self) -> list[DistributedDataParallel]:
        return [one for one in self.copied.modules() if isinstance(one, DistributedDataParallel)]

    @torch.no_grad()
    def average(self) -> None:
        decay = self.decay()
        for averaged, parameter in zip(self.averaged, self.root.parameters()):
            averaged.mul_(decay).add_(parameter, alpha=1 - decay)


class _WithDiffusersAverage(HandLoop):
    """The average that diffusers' own training examples take."""

    def make_average(self) -> None:
        from diffusers.training_utils import EMAModel

        self.ema = EMAModel(parameters=self.root.parameters(), power=_POWER, use_ema_warmup=True)
        self.averaged = self.ema.shadow_params

    def average(self) -> None:
        self.ema.step(self.root.parameters())


class Accelerate(_WithDiffusersAverage):
    """As accelerate's quick tour and diffusers' training examples have it."""

    def make(self) -> None:
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True)
        policy = Policy(self.model)
        optimizer = torch.optim.AdamW(policy.parameters(), **self.settings)
        self.root, self.optimizer = accelerator.prepare(policy, optimizer)
        self.predict, self.backward = self.root, accelerator.backward
        self.make_average()


class WithFabric(_WithDiffusersAverage):
    """As Lightning Fabric's guide has it."""

    def make(self) -> None:
        from lightning_fabric import Fabric

        fabric = Fabric(accelerator="cpu", devices=self.model.bench_ranks, strategy="ddp")
        fabric.launch()
        policy = Policy(self.model)
        optimizer = torch.optim.AdamW(policy.parameters(), **self.settings)
        self.root, self.optimizer = fabric.setup(policy, optimizer)
        self.predict, self.backward = self.root, fabric.backward
        self.make_average()


BY_HAND = {
    "hand_written_ddp": HandWritten,
    "tutorial_ddp": Tutorial,
    "accelerate": Accelerate,
    "fabric": WithFabric,
}
