"""Ranks that are threads of one process, for what only gathers objects."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

from robomimic_ddp.distributed import group
from robomimic_ddp.errors import VerifyError


def errors(*parts):
    """Return each rank's error, or None. `parts`: the Evidence of each rank, or what it calls."""
    values, ranks, barrier = {}, {}, threading.Barrier(len(parts), timeout=60)

    def gather(value):
        barrier.wait()
        values[ranks[threading.get_ident()]] = value
        barrier.wait()
        return [values[rank] for rank in range(len(parts))]

    def require(rank):
        ranks[threading.get_ident()] = rank
        try:
            getattr(parts[rank], "require", parts[rank])()
        except VerifyError as error:
            return str(error)
        except BaseException:
            barrier.abort()  # the others would wait for this rank
            raise

    with (
        mock.patch.object(group, "gather_objects", gather),
        ThreadPoolExecutor(len(parts)) as pool,
    ):
        return list(pool.map(require, range(len(parts))))
