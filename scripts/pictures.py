"""`python -m scripts.pictures` draws docs/images/pass.png with the sampler itself."""

from __future__ import annotations

from pathlib import Path

from robomimic_ddp.commands import figures
from robomimic_ddp.data.sampling.order import order_of
from robomimic_ddp.data.sampling.sampler import ShardedSampler

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
SAMPLES, RANKS, BATCH = 20, 3, 2
COLOURS = ("#2563eb", "#d97706", "#16a34a")


def draw_passes() -> None:
    """The first two passes of a small dataset over three ranks."""
    plt = figures.pyplot()
    figure, axes = plt.subplots(2, 1, figsize=(8.2, 3.6), dpi=110, constrained_layout=True)
    order = order_of(range(SAMPLES), None, True, seed=1)
    samplers = [
        ShardedSampler(order, SAMPLES, rank=rank, world_size=RANKS, drop_last=True)
        for rank in range(RANKS)
    ]
    for number, axis in enumerate(axes):
        shares = [list(sampler) for sampler in samplers]
        steps = len(shares[0]) // BATCH
        for rank, share in enumerate(shares):
            for place, sample in enumerate(share):
                kept = place < steps * BATCH
                across = place % BATCH * 0.47 + place // BATCH * 1.1
                colour = COLOURS[rank] if kept else "#d1d5db"
                axis.add_patch(plt.Rectangle((across, -rank), 0.43, 0.8, color=colour))
                style = {"ha": "center", "va": "center", "color": "white", "fontsize": 10}
                axis.text(across + 0.215, 0.4 - rank, str(sample), **style)
            axis.text(-0.15, 0.4 - rank, f"rank {rank}", ha="right", va="center")
        taken = {sample for share in shares for sample in share[: steps * BATCH]}
        left = sorted({*range(SAMPLES)} - taken)
        axis.set_title(
            f"pass {number}: {steps} steps of {RANKS} x {BATCH} samples; left out: "
            f"{', '.join(map(str, left))}",
            loc="left",
            fontsize=10,
        )
        axis.set_xlim(-0.9, steps * 1.1 + 0.4)
        axis.set_ylim(1 - RANKS - 0.1, 0.9)
        axis.axis("off")
    figures.save(figure, str(IMAGES / "pass.png"))


if __name__ == "__main__":
    draw_passes()
