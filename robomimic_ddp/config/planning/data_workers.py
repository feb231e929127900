"""How many data workers a rank has, and a warning of more of them than CPU cores."""

from __future__ import annotations

from collections.abc import Iterator

from robomimic_ddp.config.options import Options
from robomimic_ddp.errors import PlanError

_MOST_WORKERS, _WORKERS_PER_CORE = 32, 4


def of_share(asked: str, cores: int) -> int:
    """Data workers of a rank with `cores` cores, for ddp.workers=`asked`."""
    return max(0, cores - 1) if asked == "auto" else int(asked)


def notes(workers: int | None, ranks: int, options: Options, cores: int) -> Iterator[str]:
    """Warn of more data workers than cores. Raises PlanError for a number that no machine needs."""
    if workers is None and options.workers != "config":
        yield (
            f"warning: ddp.workers={options.workers} has no effect, since one process of each "
            "rank reads RLDS data; train.num_parallel_calls limits its threads"
        )
    if workers is None or options.workers == "auto":
        return
    name = "train.num_data_workers" if options.workers == "config" else "ddp.workers"
    most = max(_MOST_WORKERS, _WORKERS_PER_CORE * cores)
    if workers > most:
        raise PlanError(
            f"{name}={workers} on {cores} CPU core(s): every rank would start that many processes, "
            f"each with a copy of the dataset's cache. Use at most {most}; a few per core are "
            "plenty."
        )
    if workers * ranks > cores:
        yield (
            f"warning: {name}={workers} x {ranks} rank(s) = {workers * ranks} data workers on "
            f"{cores} CPU core(s), in addition to the ranks; ddp.workers=auto would start "
            f"{of_share('auto', cores // ranks)} for each rank"
        )
