"""Evaluation episodes on several ranks: one set of statistics, one video.

Every rank runs the episodes on a policy of its own and the main rank's statistics are told to all,
so that "best so far" is decided alike. They are told over gloo: no rank waits inside NCCL while
another simulates.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable

from robomimic_ddp import group


def rollouts(rollout_with_stats: Callable) -> Callable:
    """Collective: decorates the host's function; the main rank's result on every rank, its video
    alone.
    """

    @functools.wraps(rollout_with_stats)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if group.world_size() == 1:
            return rollout_with_stats(*args, **kwargs)
        bound = inspect.signature(rollout_with_stats).bind(*args, **kwargs)
        if not group.is_main():
            for name in ("video_dir", "video_path"):
                if name in bound.arguments:
                    bound.arguments[name] = None
        result = group.broadcast_object(rollout_with_stats(*bound.args, **bound.kwargs))
        if group.is_main() or not isinstance(result, tuple):
            return result
        statistics, videos, *rest = result
        # Hosts of the DROID family remove the videos that they do not keep: only one rank may.
        return (statistics, type(videos)(), *rest) if videos is not None else result

    return wrapped
