"""How long the demo will take on this machine, measured in a few seconds:
`python -m scripts.demo.estimate` prints one rank's measurements.

A rank's work is done for a moment by as many processes as the training has ranks: they share the
machine's cores, caches and memory as the ranks will.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from robomimic_ddp.config import env
from scripts.demo.demonstrations import record_episode

CHECKOUT = Path(__file__).resolve().parents[2]
BUDGET_SECONDS = 330.0
"""Of the six minutes that the demo may take; the rest is for what a measurement misses."""
FEWEST_EPOCHS = 10
"""With 10 epochs 91 of 100 episodes succeed, with 20 94."""
_EPISODES, _STEPS = 2, 12
_STEP_RATIO, _STEP_OVERHEAD = 1.1, 0.03
"""A step of the demo's policy over one of `_measure`, and the seconds that its data, messages and
Python take beside the arithmetic, on two cores of a server.
"""
_STARTS = {"host": 1.0, "data": 2.0, "training": 4.0, "evaluation": 3.0, "curves": 1.5}
"""How often each step of the demo waits for imports as long as that of torch."""
_ACTED = 0.7
"""An episode that a policy acts, over one that the expert records."""
_STEPS_OF_ACTING = 1.8
"""What a policy computes in an episode, over a training step."""


def measured(ranks: int) -> dict[str, float]:
    """Seconds of the slowest of `ranks` processes for the import of torch, an episode, and a
    training step.
    """
    command = [sys.executable, "-m", "scripts.demo.estimate"]
    variables = env.child_environment([str(CHECKOUT)])
    how = {"stdout": subprocess.PIPE, "env": variables, "start_new_session": True}
    each = [subprocess.Popen(command, **how) for _ in range(ranks)]
    try:
        found = [json.loads(one.communicate()[0]) for one in each]
    finally:
        for one in each:
            one.kill()
    return {name: max(one[name] for one in found) for name in found[0]}


def seconds_of(
    speed: dict[str, float], demonstrations: int, evaluations: int, steps: int
) -> dict[str, float]:
    """Seconds of each step of the demo, at the measured `speed`."""
    found = {name: count * speed["import"] for name, count in _STARTS.items()}
    found["data"] += demonstrations * speed["episode"]
    found["training"] += steps * (speed["step"] * _STEP_RATIO + _STEP_OVERHEAD)
    acted = speed["episode"] * _ACTED + speed["step"] * _STEPS_OF_ACTING
    found["evaluation"] += 2 * evaluations * acted
    return found


def epochs_within(seconds: dict[str, float], epochs: int, budget: float = BUDGET_SECONDS) -> int:
    """Of `epochs` epochs, which take `seconds["training"]`, as many as the budget leaves time for;
    at least FEWEST_EPOCHS, or all.
    """
    left = budget - (sum(seconds.values()) - seconds["training"])
    fit = int(epochs * left / max(seconds["training"], 1e-9))
    return min(epochs, max(fit, FEWEST_EPOCHS))


def clock(seconds: float) -> str:
    """Rounded as an estimate deserves."""
    if seconds < 50:
        return f"{max(5, round(seconds / 5) * 5)} s"
    return f"{max(1, round(seconds / 60))} min"


def _measure() -> dict[str, Any]:
    begun = time.perf_counter()
    import torch
    from torch import nn

    imported = time.perf_counter()
    for index in range(_EPISODES):
        record_episode(1, index)
    recorded = time.perf_counter()
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    images, actions = (
        torch.randn(size, device=device) for size in ((32, 3, 40, 40), (16, 128, 16))
    )
    sees = nn.Sequential(nn.Conv2d(3, 32, 7, 2, 3), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1))
    blocks = [layer for _ in range(8) for layer in _block(nn)]
    acts = nn.Sequential(*blocks)
    for net in (sees, acts):
        net.to(device)
    optimizer = torch.optim.AdamW([*sees.parameters(), *acts.parameters()])
    for number in range(_STEPS + 2):
        if number == 2:  # the first ones make memory and threads
            stepping = time.perf_counter()
        optimizer.zero_grad()
        loss = sees(images).square().mean() + acts(actions).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()  # waits for a GPU
    ended = time.perf_counter()
    return {
        "import": imported - begun,
        "episode": (recorded - imported) / _EPISODES,
        "step": (ended - stepping) / _STEPS,
    }


def _block(nn: Any) -> list:
    return [nn.Conv1d(128, 128, 5, padding=2), nn.GroupNorm(8, 128), nn.Mish()]


if __name__ == "__main__":
    print(json.dumps(_measure()))
