"""`bench step --rollouts`: episodes on several ranks, each held to a core of its own, and on one.

Both teams live side by side and take turns in an order that is drawn anew; the other one waits for
a word meanwhile. The host's own rollout function runs the episodes in the demo's simulator; on
several ranks it is split over them, as in training.
"""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from robomimic_ddp import env
from robomimic_ddp.bench.step_rows import interval
from robomimic_ddp.bench.team import OURS, Job, Team, Variant
from robomimic_ddp.errors import ConfigError

EPISODES, HORIZON = 2, 16
"""Episodes for each rank, and their steps: two inferences of the host's default policy."""
_WARM_UP = 1


CLOCKS = {"wall": "by the clock", "cpu": "of processor time"}


@dataclass(frozen=True)
class Rolled:
    """Seconds of `episodes` episodes of `horizon` steps, turn by turn and by clock (`CLOCKS`):
    `alone` on one rank, `together` on `ranks` ranks (of the last one). `shares`: episodes that
    each of the ranks began in a turn.
    """

    ranks: int
    episodes: int
    horizon: int
    parameters: int
    cores: tuple[int, ...]
    shares: tuple[int, ...]
    alone: dict[str, list[float]]
    together: dict[str, list[float]]

    def ratios(self, clock: str) -> list[float]:
        """How many times as fast as one rank all are, turn by turn."""
        return [one / all_ for one, all_ in zip(self.alone[clock], self.together[clock])]


def measure(job: Job, rounds: int) -> Rolled:
    """`rounds` turns of each, after one to warm up. Raises ConfigError for fewer cores than
    ranks.
    """
    cores = env.own_cores()
    if not hasattr(os, "sched_setaffinity"):
        raise ConfigError("--rollouts: this system cannot hold a process to a core. Use Linux.")
    if len(cores) < job.ranks:
        raise ConfigError(
            f"--rollouts --ranks {job.ranks}: this process may run on {len(cores)} core(s), and "
            "each rank is to have one of its own. Ask for fewer ranks."
        )
    episodes = EPISODES * job.ranks
    seconds = {ranks: {clock: [] for clock in CLOCKS} for ranks in (1, job.ranks)}
    shares: dict[int, tuple[int, ...]] = {}
    with ExitStack() as stack:
        teams = {}
        for ranks in seconds:
            teams[ranks] = Team(replace(job, ranks=ranks), Variant(OURS), cores)
            stack.callback(teams[ranks].close)
        for number in range(_WARM_UP + rounds):
            for ranks in random.Random(number).sample(list(teams), len(teams)):
                told = teams[ranks].ask(f"rollout {episodes} {HORIZON}")
                for clock in CLOCKS if number >= _WARM_UP else ():
                    seconds[ranks][clock].append(max(one[clock] for one in told))
                shares[ranks] = tuple(int(one["episodes"]) for one in told)
        parameters = teams[1].told[0]["parameters"]
    horizon, used = int(told[0]["horizon"]), tuple(cores[: job.ranks])
    share = shares[job.ranks]
    return Rolled(job.ranks, episodes, horizon, parameters, used, share, *seconds.values())


def rows(found: Rolled) -> list[dict]:
    """One row for each number of ranks."""
    made = []
    for world, seconds in ((1, found.alone), (found.ranks, found.together)):
        row = {"variant": OURS, "world": world, "options": {}, "parameters": found.parameters}
        row["episodes_per_second"] = found.episodes / statistics.median(seconds["wall"])
        row["env_steps_per_second"] = row["episodes_per_second"] * found.horizon
        made.append(row)
    made[-1]["episodes_of_ranks"] = list(found.shares)
    for clock in CLOCKS:
        ratios = found.ratios(clock)
        low, high = interval(ratios)
        median = statistics.median(ratios)
        told = {"median": median, "low": low, "high": high, "rounds": len(ratios)}
        made[-1]["times_one_rank" + ("_cpu" if clock == "cpu" else "")] = told
    return made


def lines(found: Rolled) -> Iterator[str]:
    """Lines for the terminal."""
    made: Sequence[dict] = rows(found)
    yield f"{'ranks':>5} {'episodes/s':>11} {'environment steps/s':>20}"
    for row in made:
        yield (
            f"{row['world']:5} {row['episodes_per_second']:11.3f} "
            f"{row['env_steps_per_second']:20.1f}"
        )
    yield (
        f"{found.parameters / 1e6:.1f} M parameters; {found.episodes} episodes of {found.horizon} "
        f"steps of the demo's simulator; cores {', '.join(map(str, found.cores))}, a rank each"
    )
    for key, clock in zip(("times_one_rank", "times_one_rank_cpu"), CLOCKS.values()):
        times = made[-1][key]
        yield (
            f"rollouts on {found.ranks} ranks: {times['median']:.2f} times one rank's {clock} "
            f"(95 %: {times['low']:.2f} to {times['high']:.2f}, {times['rounds']} rounds)"
        )
