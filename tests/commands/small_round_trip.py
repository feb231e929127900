"""The ranks of `doctor --ranks N`, with the gradients of a small policy."""

from __future__ import annotations

from robomimic_ddp.commands.doctor import round_trip

if __name__ == "__main__":
    round_trip.PARAMETERS = 1_000_000
    round_trip.measure()
