"""How far N ranks with batch B may be from one process with batch N x B, and why.

Losses: 1e-4 relative. The mean of N means rounds in another order than the mean of the whole.

Parameters and averages. Adam divides a gradient by its own size, so where a gradient is all
rounding a step may differ by up to the learning rate. One such step is allowed at any single
parameter (10 steps move one by up to 10 learning rates), and 2e-3 learning rates on average.

Optimizer state: each of Adam's two moments, all parameters laid end to end, 2e-5 of its norm.
Moments are averages of gradients, which have no such division; they differ by rounding, and by
what the parameters' rounding does to later gradients. Step counts are equal.

`test_the_tolerance_is_tight` proves that a rank that trained on its own data alone is outside each.
"""

from __future__ import annotations

import torch

LEARNING_RATE = 1e-4
CHANGES = {
    "train": {"hdf5_cache_mode": "low_dim"},
    "algo": {
        "optim_params": {"policy": {"learning_rate": {"initial": LEARNING_RATE, "warmup_steps": 0}}}
    },
}
STEPS = 10
PARTS = ("nets", "ema", "optimizer")


def largest_and_mean(ours: dict, theirs: dict) -> tuple[float, float]:
    """Absolute difference over all scalars of two state dicts."""
    assert list(ours) == list(theirs)
    flat = torch.cat([(ours[name] - theirs[name]).abs().flatten() for name in theirs])
    return float(flat.max()), float(flat.mean())


def moment_distance(ours: dict, theirs: dict, moment: str) -> float:
    """Length of the difference of one of Adam's moments, in lengths of `theirs`."""
    assert list(ours) == list(theirs)
    names = [name for name in theirs if name.endswith(f".{moment}")]
    first, second = (torch.cat([one[name].flatten() for name in names]) for one in (ours, theirs))
    return float((first - second).norm() / second.norm())


def distances(ours: dict, theirs: dict) -> dict[str, float]:
    """How far two `training.result_of` are apart: each net's parameters in lengths of the way that
    `theirs` have gone, targets too, and its buffers likewise; each moment of each optimizer in its
    own lengths. Whole numbers are equal.
    """
    assert list(ours["nets"]) == list(theirs["nets"])
    assert list(ours["optimizer"]) == list(theirs["optimizer"])
    pairs: dict[str, list] = {}
    for name, tensor in theirs["nets"].items():
        if not tensor.is_floating_point():
            assert torch.equal(ours["nets"][name], tensor), name
            continue
        way = tensor - theirs["start"][name]
        pairs.setdefault(name.partition(":")[0], []).append((ours["nets"][name] - tensor, way))
    for name, tensor in theirs["optimizer"].items():
        optimizer, _, kind = name.rsplit(".", 2)
        pair = ours["optimizer"][name] - tensor, tensor
        pairs.setdefault(f"{kind} of optimizer {optimizer}", []).append(pair)
    return {name: _ratio(*map(_flat, zip(*found))) for name, found in pairs.items()}


def _flat(tensors: tuple) -> torch.Tensor:
    return torch.cat([tensor.double().flatten() for tensor in tensors])


def _ratio(difference: torch.Tensor, way: torch.Tensor) -> float:
    """Of the lengths; 0 where both are 0."""
    if not difference.any():
        return 0.0
    return float(difference.norm() / way.norm())


def faults(ours: dict, theirs: dict) -> list[str]:
    """What is outside the tolerances between two `training.result_of`; its figures are printed."""
    found = []
    for part in ("nets", "ema"):
        largest, mean = largest_and_mean(ours[part], theirs[part])
        print(f"{part}: largest {largest:.1e}, mean {mean:.1e}")
        if not (largest < LEARNING_RATE and mean < 2e-3 * LEARNING_RATE):
            found.append(part)
    for moment in ("exp_avg", "exp_avg_sq"):
        distance = moment_distance(ours["optimizer"], theirs["optimizer"], moment)
        print(f"{moment}: {distance:.1e}")
        if not distance < 2e-5:
            found.append(moment)
    steps = [name for name in theirs["optimizer"] if name.endswith(".step")]
    assert steps
    if any(ours["optimizer"][name] != theirs["optimizer"][name] for name in steps):
        found.append("step")
    if ours["lr"] != theirs["lr"]:
        found.append("lr")
    return found


def require_parity(of_ranks: list, reference: dict) -> None:
    """The ranks' results are equal to the bit, and within the tolerances of the reference's."""
    first = of_ranks[0]
    for other in of_ranks[1:]:
        for part in PARTS:
            assert largest_and_mean(first[part], other[part]) == (0, 0), part
        assert first["losses"] != other["losses"]
    mean = torch.tensor([one["losses"] for one in of_ranks], dtype=torch.float64).mean(0)
    expected = torch.tensor(reference["losses"], dtype=torch.float64)
    torch.testing.assert_close(mean, expected, rtol=1e-4, atol=1e-6)
    assert faults(first, reference) == []
