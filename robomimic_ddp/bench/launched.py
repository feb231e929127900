"""The variables that a launcher would give to ranks of one machine."""

from __future__ import annotations

import socket

KEEPS_BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}
"""For processes whose start is timed: else all modules may be compiled anew at each start."""


def rank_variables(rank: int, world: int, port: int) -> dict[str, str]:
    """For `rank` of `world` on this machine, which meet at `port`."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "GROUP_RANK": "0",
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": "bench",  # how Fabric knows that ranks have been started
    }


def free_port() -> int:
    """A TCP port that nobody listens at now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
