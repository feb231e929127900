"""Run-time proof: equal where ranks must be equal, different where they must differ.

Equality is of bits: every tensor is reduced to two 64-bit sums on its own device, and only their
digest travels. Differences are of whole random states and whole index streams, never of single
values, which may collide by chance; the states of differently seeded ranks differ by construction
(`run.seed_streams`).
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Hashable, Mapping
from typing import Any, Callable

import numpy as np
import torch

from robomimic_ddp import algo as host_algo
from robomimic_ddp import group, wrap
from robomimic_ddp.errors import VerifyError

NOT_PROVEN = {"gradients_equal": None, "noise_differs": None}
_CHUNK = 1 << 20
_ODD = 0x9E3779B1  # any odd multiplier: makes the second sum depend on positions


def checksum(tensor: torch.Tensor) -> tuple[int, int]:
    """Two 64-bit sums over the tensor's bits, the second weighted by position; computed on its own
    device.
    """
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if flat.storage_offset() % 4:  # a slice may begin anywhere; int32 words must not
        flat = flat.clone()
    words = flat if flat.numel() % 4 else flat.view(torch.int32)
    plain = torch.zeros((), dtype=torch.int64, device=flat.device)
    weighted = torch.zeros_like(plain)
    for start in range(0, words.numel(), _CHUNK):
        part = words[start : start + _CHUNK].to(torch.int64)
        weights = torch.arange(start, start + part.numel(), device=flat.device).mul_(_ODD).add_(1)
        plain += part.sum()
        weighted += (part * weights).sum()
    return int(plain), int(weighted)


def require_equal(what: str, items: Mapping[str, Hashable], cause: str = "") -> None:
    """Collective: raises VerifyError on all ranks, naming the first item that differs and the
    ranks.

    `items` maps names to values with a stable repr. `what` begins the message, `cause` ends it.
    """
    digest = hashlib.blake2b(repr(sorted(items.items())).encode(), digest_size=16).hexdigest()
    if len(set(group.gather_objects(digest))) == 1:
        return
    per_rank = group.gather_objects(dict(items))
    for name in dict.fromkeys(name for rank_items in per_rank for name in rank_items):
        values = [rank_items.get(name, "absent") for rank_items in per_rank]
        if len(set(values)) > 1:
            usual = max(values, key=values.count)
            odd = [rank for rank, value in enumerate(values) if value != usual]
            raise VerifyError(
                f"{what}: {name} is not the same on all ranks; found {_shown(values)}, so rank(s) "
                f"{odd} differ from "
                f"the others. Expected equal bits: ranks that disagree train different models. "
                f"{cause}".rstrip()
            )


def _shown(values: list) -> str:
    return "; ".join(f"rank {rank}: {str(value)[:60]}" for rank, value in enumerate(values))


def require_different(what: str, value: Hashable, cause: str) -> None:
    """Collective: raises VerifyError on all ranks when two ranks hold an equal `value`. None means:
    not known.
    """
    values = group.gather_objects(value)
    known = [one for one in values if one is not None]
    if len(set(known)) < len(known):
        same = [
            rank for rank, one in enumerate(values) if one is not None and values.count(one) > 1
        ]
        raise VerifyError(
            f"{what}: ranks {same} hold the same; expected a different one on each rank. {cause}"
        )


def random_state_digest() -> str:
    """Digest of the torch generators (CPU and the present CUDA device) of this process."""
    digest = hashlib.blake2b(torch.get_rng_state().numpy().tobytes(), digest_size=16)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        digest.update(torch.cuda.get_rng_state().numpy().tobytes())
    return digest.hexdigest()


def augmentation_state_digest() -> str:
    """Digest of numpy's and Python's global generators, which host augmentations draw from."""
    name, keys, position, *_ = np.random.get_state()
    digest = hashlib.blake2b(np.asarray(keys).tobytes(), digest_size=16)
    digest.update(repr((name, position, random.getstate())).encode())
    return digest.hexdigest()


def require_covered(algo: Any) -> None:
    """Raises VerifyError when a trainable parameter belongs to no parallel net: nobody would
    synchronise it.
    """
    covered = set()
    for _, module in host_algo.named_modules(algo):
        if wrap.is_parallel(module):
            covered.update(id(parameter) for parameter in module.parameters())
    loose = [
        name
        for name, parameter in host_algo.named_parameters(algo)
        if parameter.requires_grad and id(parameter) not in covered
    ]
    if loose:
        raise VerifyError(
            f"{type(algo).__name__}: {loose[0]} ({len(loose)} parameter(s) in all) is outside "
            f"the nets that the retrofit synchronises, so {group.world_size()} ranks would train "
            f"{group.world_size()} different models. The diffusion policy's obs_encoder and "
            "noise_pred_net are covered; train this algorithm with one process."
        )


class Verifier:
    """Checks one training run: `start` before the first step, then by itself at that step, then
    `epoch_end`.
    """

    def __init__(self, algo: Any, train_loader: Any = None) -> None:
        self.algo = algo
        self.train_loader = train_loader
        self._names = {id(parameter): name for name, parameter in host_algo.named_parameters(algo)}
        self._pending: list = []
        self.proven: dict[str, bool | None] = dict(NOT_PROVEN)
        """What the first step has shown: reduced gradients of equal bits on all ranks, and random
        streams (of noise and timesteps) that differ. None: not come to it.
        """

    def start(self) -> None:
        """Collective: coverage, equal weights and counters, different random streams; arms the
        first step.
        """
        require_covered(self.algo)
        self._require_equal_state("before the first step")
        self._require_different_streams("before the first step")
        for name, optimizer in host_algo.named_optimizers(self.algo):
            self._pending.append(
                optimizer.register_step_pre_hook(self._at_first_step(name, len(self._pending)))
            )

    def epoch_end(self, epoch: Any) -> None:
        """Collective: equal weights, averaged weights and counters after an epoch."""
        self._require_equal_state(f"end of epoch {epoch}")

    def _require_equal_state(self, when: str) -> None:
        items: dict[str, Hashable] = {
            name: repr(value) for name, value in host_algo.counters(self.algo).items()
        }
        items.update((name, checksum(tensor)) for name, tensor in host_algo.named_state(self.algo))
        require_equal(
            when,
            items,
            "Common causes: a net trained past its parallel forward, a rank that skipped a "
            "step or loaded another checkpoint.",
        )

    def _require_different_streams(self, when: str) -> None:
        require_different(
            f"{when}: torch's random state",
            random_state_digest(),
            "Ranks would draw the same noise and timesteps, and the batch would count as one "
            "rank's. Something re-seeds torch with the same value on every rank.",
        )
        require_different(
            f"{when}: numpy's and Python's random state",
            augmentation_state_digest(),
            "Ranks would draw the same augmentation. Something re-seeds numpy or random on every "
            "rank.",
        )

    def _at_first_step(self, name: str, index: int) -> Callable:
        def check(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
            self._pending[index].remove()
            when = f"first step of optimizer {name}"
            gradients = {
                f"gradient of {self._names.get(id(parameter), 'a parameter outside nets')}": "none"
                if parameter.grad is None
                else checksum(parameter.grad)
                for group_of in optimizer.param_groups
                for parameter in group_of["params"]
            }
            require_equal(when, gradients, self._cause())
            self.proven["gradients_equal"] = True
            self._require_different_streams(when)
            self.proven["noise_differs"] = True
            self._require_shared_pass(when)

        return check

    def _require_shared_pass(self, when: str) -> None:
        """One order of the data for all ranks, a different share of it on each. Loaders without
        digests (streams that a host shards by itself) are not judged.
        """
        order = getattr(self.train_loader, "order_digest", lambda: None)()
        require_equal(
            when,
            {"the order of the present pass over the data": order},
            "The host's sampler draws from a generator of its own that differs by rank, so samples "
            "would be repeated and missed. Seed it with train.seed.",
        )
        require_different(
            f"{when}: the share of the data",
            getattr(self.train_loader, "telling_digest", lambda: None)(),
            "Every rank would train on the same samples.",
        )

    def _cause(self) -> str:
        unused = [
            wrap.state_of(module).name
            for _, module in host_algo.named_modules(self.algo)
            if wrap.is_parallel(module)
            and wrap.has_trainable_parameters(module)
            and wrap.state_of(module).training_forwards == 0
        ]
        if unused:
            return (
                f"{', '.join(unused)} was never called in training mode: it was trained past its "
                "parallel "
                "forward (through net.forward, another method, or while in eval())."
            )
        return (
            "A part of a net was trained past its parallel forward, for example through another "
            "method."
        )
