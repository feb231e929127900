"""How gradients travel between ranks: whole, in 16 bits, or compressed, by torch's own hooks.

PowerSGD (Vogels et al., NeurIPS 2019) has a state to save: what a step could not send is kept on
the rank, and added to its next gradient. A run that resumed without it would lose a part of its
gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as torch_hook
from torch.nn.parallel import DistributedDataParallel

from robomimic_ddp.config.monkeypatch import swapped
from robomimic_ddp.config.options import Options
from robomimic_ddp.distributed import group
from robomimic_ddp.errors import PlanError

HOOKS = {
    "fp16": default_hooks.fp16_compress_hook,
    "bf16": default_hooks.bf16_compress_hook,
}
BYTES = {"none": 4, "fp16": 2, "bf16": 2}


class Communication:
    """`line`: of the printed plan. `bytes_per_step`: what a rank gives to all-reduces in a step, at
    last. `powersgd`: the compressor of each net by name, empty for another kind; their state
    belongs to the run's.
    """

    def __init__(self, line: str, bytes_per_step: int, powersgd: dict[str, PowerSGD]) -> None:
        self.line, self.bytes_per_step, self.powersgd = line, bytes_per_step, powersgd


def sends_bf16(device: str) -> bool:
    """Collective: whether gradients on `device` can travel in bf16; torch 2.0's gloo refuses."""
    if not group.is_initialized() or not group.sends_over_gloo(torch.device(device)):
        return True
    try:
        torch.distributed.all_reduce(torch.zeros(1, dtype=torch.bfloat16, device=device))
    except RuntimeError:
        return False
    return True


def communicate(reducers: list, options: Options) -> Communication | None:
    """Has the DDP objects of `reducers` (`optimizer_ddp.reducers`, built) send gradients as the
    options say; None where nothing is sent. Collective, once, before the first backward. Raises
    PlanError where PowerSGD does not go with the other options, or bf16 with this torch.
    """
    states = [one for one in reducers if isinstance(one.parallel, DistributedDataParallel)]
    if not states:
        return None
    whole = sum(_numbers(state) for state in states) * BYTES["none"]
    if options.kind("comm") == "powersgd":
        _require_possible(options)
        return _powersgd(states, options, whole)
    if options.comm == "bf16" and not sends_bf16(str(states[0].reduced[0].device)):
        raise PlanError(
            f"ddp.comm=bf16 is not possible over gloo with torch {torch.__version__}: its gloo "
            "sends no bf16. Use ddp.comm=fp16, or leave the option at its default."
        )
    if options.comm != "none":
        for state in states:
            state.parallel.register_comm_hook(None, HOOKS[options.comm])
    sent = whole * BYTES[options.comm] // BYTES["none"]
    line = f"gradients: {_mb(sent)} a step"
    if sent == whole:
        return Communication(f"{line} from each rank, in fp32", sent, {})
    line += f" from each rank, in {options.comm} (in place of {_mb(whole)} in fp32)"
    return Communication(line, sent, {})


def _powersgd(states: list, options: Options, whole: int) -> Communication:
    rank, start = options.number("comm"), options.powersgd_start
    compressors = {}
    for state in states:
        compressors[state.name] = compressor = PowerSGD(rank, start)
        state.parallel.register_comm_hook(compressor.state, compressor.hook)
    sent = sum(one.bytes_of(state.reduced) for one, state in zip(compressors.values(), states))
    line = (
        f"gradients: {_mb(whole)} a step from each rank, in fp32; after step {start} "
        f"{_mb(sent)}, by PowerSGD of rank {rank}"
    )
    return Communication(line, sent, compressors)


def _require_possible(options: Options) -> None:
    reason = None
    if options.static_graph:
        reason = (
            "ddp.static_graph=true: DDP then rebuilds its buckets after the first step of "
            "every process, and a resumed run's errors would belong to other parameters"
        )
    elif options.precision == "fp16":
        reason = (
            "ddp.precision=fp16: gradients are scaled by a changing number and may overflow, and "
            "PowerSGD keeps what it could not send, an infinity for ever"
        )
    if reason is not None:
        raise PlanError(
            f"ddp.comm=powersgd does not go with {reason}. Use ddp.comm=bf16, or leave the other "
            "option at its default (for 16 bits in the nets: ddp.precision=bf16)."
        )


def _numbers(state: Any) -> int:
    return sum(parameter.numel() for parameter in state.reduced)


def _mb(size: int) -> str:
    return f"{size / 1e6:.3g} MB" if size < 1e8 else f"{size / 1e6:.0f} MB"


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
        """Without what was kept. At least two more steps are sent whole, since DDP rebuilds its
        buckets after its first one.
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
