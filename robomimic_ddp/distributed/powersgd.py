"""PowerSGD (Vogels et al., NeurIPS 2019; torch's hook) for one DDP object, with a state to save.

What a step could not send is kept on the rank, and added to its next gradient: a run that goes on
without these errors would have lost a part of its gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as torch_hook

from robomimic_ddp.config.swapped import swapped
from robomimic_ddp.distributed import group

_EPSILON = 1e-8
"""Added to the length of a column, which is 0 where a whole gradient is."""


class PowerSGD:
    """`state` and `hook` are for `DistributedDataParallel.register_comm_hook`."""

    def __init__(self, rank: int, start: int) -> None:
        self.state = torch_hook.PowerSGDState(
            None,
            matrix_approximation_rank=rank,
            start_powerSGD_iter=start,
            orthogonalization_epsilon=_EPSILON,
        )

    @staticmethod
    def hook(state, bucket):  # DDP refuses annotations that are text
        """Collective: torch's hook.

        Over gloo it waits for the bucket. The hook's later messages start in gloo's threads: with
        two buckets under way, ranks would send them in different orders, and the threads, waiting
        for each other, would never end. (NCCL runs these continuations at once.)
        """
        if state.iter < state.start_powerSGD_iter:
            return torch_hook.powerSGD_hook(state, bucket)
        device = bucket.buffer().device
        with _only_gpu_gradients_wait(device):
            future = torch_hook.powerSGD_hook(state, bucket)
            if group.sends_over_gloo(device):
                future.wait()
        return future

    def bytes_of(self, parameters: Iterable[torch.Tensor]) -> int:
        """What a rank gives to all-reduces in a step, once compression has begun."""
        return 4 * sum(self._numbers(parameter.shape) for parameter in parameters)

    def _numbers(self, shape: torch.Size) -> int:
        """As torch's hook decides: a matrix is what remains behind the first dimension, and is
        sent whole where factors would not save enough.
        """
        rows, whole = (shape[0] if shape else 1), shape.numel()
        columns = whole // max(rows, 1)
        factors = (rows + columns) * min(rows, columns, self.state.matrix_approximation_rank)
        return factors if factors * self.state.min_compression_rate < whole else whole

    def common(self) -> dict[str, Any]:
        """The part of the state that is the same on all ranks; no tensor is shared."""
        state = self.state
        _, words, position, _, _ = state.rng.get_state()
        return {
            "steps": state.iter,
            "words": torch.from_numpy(np.asarray(words).astype(np.int64)),
            "position": int(position),
            "left": {index: len(p) for index, p in state.p_memory_dict.items()},
            "right": {index: q.detach().cpu() for index, q in state.q_memory_dict.items()},
        }

    def errors(self) -> dict[int, torch.Tensor]:
        """What this rank has not sent yet, by bucket; on the CPU."""
        return {index: error.detach().cpu() for index, error in self.state.error_dict.items()}

    def restore(self, common: dict, errors: dict[int, torch.Tensor], device: Any) -> None:
        """Puts back what `common` and `errors` returned in a run with the same buckets."""
        state = self.state
        state.iter = common["steps"]
        words = common["words"].numpy().astype(np.uint32)
        state.rng.set_state(("MT19937", words, common["position"], 0, 0.0))
        state.p_memory_dict = {
            index: torch.empty(size, device=device) for index, size in common["left"].items()
        }
        state.q_memory_dict = {
            index: right.to(device, copy=True) for index, right in common["right"].items()
        }
        state.error_dict = {index: error.to(device, copy=True) for index, error in errors.items()}

    def begin_anew(self, steps: int) -> None:
        """Without what was kept. At least two more steps are sent whole, since DDP lays its buckets
        out anew after its first one.
        """
        self.state.iter = min(steps, self.state.start_powerSGD_iter - 2)


@contextmanager
def _only_gpu_gradients_wait(device: torch.device) -> Iterator[None]:
    """torch's hook waits for `device` wherever the machine has a GPU, and fails for the CPU."""
    with ExitStack() as stack:
        if device.type == "cpu":
            stack.enter_context(swapped(torch.cuda, "is_available", lambda: False))
        yield


def mean_errors(of_ranks: list[dict[int, torch.Tensor]]) -> dict[int, torch.Tensor]:
    """What each rank of another number of ranks starts with: the gradients' mean over ranks is then
    short of nothing.
    """
    ranks = len(of_ranks)
    return {
        index: sum(errors[index].double() for errors in of_ranks).div(ranks).to(error.dtype)
        for index, error in of_ranks[0].items()
    }
