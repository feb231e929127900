"""The memory that training a policy needs, from its number of parameters."""

from __future__ import annotations

STATE_BYTES, AVERAGE_BYTES = 16, 4
"""A parameter in fp32 takes weight 4, gradient 4, Adam's two moments 8; an average (EMA) 4."""
GATHERED_BYTES = 5
"""As `tests/ranks/gradients/test_fsdp.py` counts them. FSDP's units have at most a quarter of a
net, so what is whole of a unit has 1 byte a parameter. torch keeps at most five at once: weights
and the buffers that they come in, gradients and their copy that is sent. Validation needs 4: all
weights of the nets.
"""
_START_BYTES = 8
"""Before they are sharded, weights and average are whole on each rank."""
_SHARE = 1 / 2
"""The share of a GPU that the state may take: the rest is for activations."""


def size(parameters: int, averages: int = 1) -> tuple[int, str]:
    """Return the bytes of what a device without FSDP keeps, and how they are counted. averages: the
    number of copies of averaged weights.
    """
    state = STATE_BYTES + AVERAGE_BYTES * averages
    average = ("", ", average", ", average twice")[averages]
    return parameters * state, (
        f"{_short(parameters)} parameters x {state} bytes (weight, gradient, Adam's moments"
        f"{average}) = {amount(parameters * state)}"
    )


def describe(parameters: int, shards: int, gpu_bytes: int | None = None, averages: int = 1) -> str:
    """Estimates for one device, DDP and FSDP over `shards` ranks, and which the policy needs.

    gpu_bytes: the memory of one GPU, or None where there is none; averages: as in `size`.
    """
    whole, counted = size(parameters, averages)
    line = (
        f"{counted} on each rank with one device or DDP; with FSDP over {shards} ranks "
        f"{amount(whole / shards)} and up to {amount(parameters * GATHERED_BYTES)} for weights and "
        "gradients gathered for a moment; activations come on top"
    )
    if gpu_bytes is None:
        return f"{line}. ddp.mode=fsdp is worth it where DDP's is more than half of a GPU"
    of = f"half of a GPU with {amount(gpu_bytes)}"
    if fits(parameters, 1, gpu_bytes, averages):
        return f"{line}. DDP's is less than {of}: ddp.mode=fsdp would cost time and is not needed"
    if fits(parameters, shards, gpu_bytes, averages):
        return f"{line}. DDP's is more than {of}: ddp.mode=fsdp is worth it"
    if parameters * _START_BYTES > gpu_bytes:
        start = f"{amount(parameters * _START_BYTES)} before it is sharded"
        return f"{line}. Weights and average need {start}, more than a GPU's {amount(gpu_bytes)}"
    return f"{line}. Both are more than {of}: ddp.mode=fsdp needs more ranks, or ddp.fsdp_offload"


def fits(parameters: int, shards: int, gpu_bytes: int, averages: int = 1) -> bool:
    """Return whether the state leaves half of a GPU to activations; one shard is DDP."""
    gathered = GATHERED_BYTES if shards > 1 else 0
    trains = size(parameters, averages)[0] / shards + parameters * gathered
    return trains <= gpu_bytes * _SHARE and parameters * _START_BYTES <= gpu_bytes


def amount(count: float) -> str:
    """Return a number of bytes for people."""
    return _short(count, (("GB", 10**9), ("MB", 10**6), ("kB", 10**3), ("B", 1)))


def _short(number: float, units: tuple = (("B", 10**9), ("M", 10**6), ("k", 10**3))) -> str:
    """Two digits and the unit."""
    for unit, size in units:
        if number >= size:
            digits = 0 if number >= 10 * size else 1
            return f"{number / size:.{digits}f} {unit}"
    return str(number)
