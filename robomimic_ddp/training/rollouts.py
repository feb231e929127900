"""Splits evaluation episodes over ranks; each rank simulates its share.

Rank r runs episodes r, r + world size, ...; a rank may have none. Each episode has separate random
streams, a function of (seed, epoch, environment, episode), so the episodes do not depend on the
number of ranks. The statistics are merged over gloo, in a group without a time limit: a rank may
wait for hours, and never inside NCCL.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

from robomimic_ddp.config import tree
from robomimic_ddp.distributed import group, main_rank, rng, watchdog
from robomimic_ddp.errors import RobomimicDDPError
from robomimic_ddp.terminal import listed, print_clean, warn
from robomimic_ddp.training import episodes as episodes_of

logger = logging.getLogger(__name__)

_VIDEO = ("video_dir", "video_path")


def why_on_main(config: Any) -> str:
    """Return why the main rank plays all episodes of this configuration; "" where they are split.

    robocasa's vector environments (`experiment.rollout.batched`) are processes that a rank cannot
    seed, and play several episodes in one call of `reset`.
    """
    if not tree.at(config, "experiment.rollout.batched"):
        return ""
    return (
        "experiment.rollout.batched: its simulators are processes, which would have the same seeds "
        "on every rank"
    )


def split(play: Callable, call: inspect.BoundArguments, seed: int, why_on_main: str = "") -> Any:
    """Collective: run this rank's share of the host's `rollout_with_stats(policy, envs, ...)`.

    Every rank gets the statistics of all episodes; the video shows the main rank's. seed: the
    run's. On one rank the host's function is called unchanged. With a reason `why_on_main`, and
    without parameters `envs` and `num_episodes`, it is called on the main rank alone, with the
    random streams of all its episodes, and its result is given to all.
    """
    if group.world_size() == 1:
        return play(*call.args, **call.kwargs)
    call.apply_defaults()
    epoch = call.arguments.get("epoch")
    streams = episodes_of.streams(seed, epoch)
    if not {"envs", "num_episodes"} <= call.arguments.keys():
        why_on_main = f"{play.__name__} names no episodes to split"
    with group.without_time_limit() as waiting:
        watchdog.reached(f"epoch {epoch} rollouts")
        if why_on_main:
            return _on_main(play, call, streams, waiting, why_on_main)
        envs, episodes = call.arguments["envs"], _episodes(call)
        numbers = range(group.rank(), episodes, group.world_size())
        main_rank.say(
            f"rollouts: {episodes} episode(s) of each environment, over {group.world_size()} ranks"
        )
        call.arguments["num_episodes"] = len(numbers)
        if not group.is_main():
            call.arguments.update((name, None) for name in _VIDEO if name in call.arguments)
        data_logger = call.arguments.get("data_logger")
        if data_logger is not None:  # it would log this rank's share
            call.arguments["data_logger"] = None
        with rng.kept(), ExitStack() as stack:
            call.arguments["envs"] = _seeded(envs, numbers, streams, stack)
            result = play(*call.args, **call.kwargs) if numbers else None
        merged = _merged(result, len(numbers), waiting)
    if data_logger is not None:
        _record(data_logger, merged[0] if isinstance(merged, tuple) else merged, epoch)
    return merged


def _on_main(
    play: Callable,
    call: inspect.BoundArguments,
    streams: tuple[int, ...],
    waiting: Any,
    why: str,
) -> Any:
    """Collective: return the main rank's result, or error; videos as `_merged` has them."""

    def play_seeded() -> Any:
        print_clean(f"rollouts: rank 0 plays all episodes ({why})")
        with rng.kept():
            rng.seed(*streams)
            return play(*call.args, **call.kwargs)

    result = main_rank.on_main_untimed(waiting, play_seeded)
    if group.is_main() or not isinstance(result, tuple):
        return result
    first, *rest = result
    return (first, *(type(part)() if isinstance(part, dict) else part for part in rest))


def _episodes(call: inspect.BoundArguments) -> int:
    """Return the requested number of episodes, at least 1, for the main rank."""
    episodes = call.arguments["num_episodes"]
    if not isinstance(episodes, int) or episodes < 1:
        raise RobomimicDDPError(
            f"rollouts with num_episodes={episodes!r}: expected at least 1, since there would be "
            "no statistics. Set experiment.rollout.n to 1 or more, or "
            "experiment.rollout.enabled=false."
        )
    return episodes


def _seeded(envs: Any, numbers: Sequence[int], streams: tuple[int, ...], stack: ExitStack) -> Any:
    """Return `envs`, of which each `reset` seeds the random streams of its next episode, until
    `stack` ends. envs: a dict or list of environments, or an iterator that makes them one by one;
    None is one that the host could not make, and skips.
    """

    def seeded(number: int, env: Any) -> Any:
        if env is None:
            return nullcontext()
        return episodes_of.seeded(env, numbers, streams, number)

    def one_by_one() -> Iterator[Any]:
        for number, env in enumerate(envs):
            with seeded(number, env):
                yield env
            del env  # the host has closed it

    if isinstance(envs, Iterator):
        return one_by_one()
    for number, env in enumerate(envs.values() if isinstance(envs, Mapping) else envs):
        stack.enter_context(seeded(number, env))
    return envs


def _merged(result: Any, episodes: int, waiting: Any) -> Any:
    """Collective: return the host's result for the episodes of all ranks, its statistics equal on
    each.

    A host returns statistics, {environment: {name: mean over episodes}}, alone or first in a tuple
    with the videos' paths. Only the main rank keeps the paths: DROID hosts remove the videos that
    they do not keep, which only one rank may do.
    """
    statistics, *rest = result if isinstance(result, tuple) else (result,)
    kinds = [type(part) for part in rest] if isinstance(result, tuple) else None
    watchdog.reached("rollout statistics")
    parts = group.gather_objects((statistics, episodes, kinds), within=waiting)
    merged = merge([part[:2] for part in parts])
    of_main = parts[0][2]  # rank 0 has the first episode, so it has a result
    if of_main is None:
        return merged
    if not group.is_main():
        rest = [None if kind is type(None) else kind() for kind in of_main]
    return (merged, *rest)


def _record(data_logger: Any, statistics: Mapping[str, Mapping[str, Any]], epoch: Any) -> None:
    """Logs the statistics of all episodes as a host does that gives its rollouts a logger."""
    for env, log in statistics.items():
        for name, value in log.items():
            if name.startswith("Time_"):
                key = f"Timing_Stats/Rollout_{env}_{name.removeprefix('Time_')}"
                data_logger.record(key, value, epoch)
            else:
                data_logger.record(f"Rollout/{name}/{env}", value, epoch, log_stats=True)
        if group.is_main():
            text = json.dumps(log, sort_keys=True, indent=4, default=float)
            print_clean(f"\nEpoch {epoch} Rollouts of all ranks\nEnv: {env}\n{text}")


def merge(parts: list[tuple[dict[str, dict[str, float]] | None, int]]) -> dict[str, Any]:
    """Statistics of all ranks from each rank's (statistics or None, number of episodes).

    Means are weighted by episodes. `Time_Episode`, the host's minutes of all episodes, is summed.
    A rank counts only in environments that it has played: robocasa's statistics lack one that
    could not be made, and are -1 where the simulator failed. The main rank warns of it.
    """
    ran = {rank: part for rank, part in enumerate(parts) if part[1]}
    merged = type(ran[0][0])()
    for env in dict.fromkeys(env for statistics, _ in ran.values() for env in statistics):
        logs = {rank: (part[0][env], part[1]) for rank, part in ran.items() if env in part[0]}
        played = {rank: log for rank, log in logs.items() if log[0].get("Success_Rate", 0) >= 0}
        if played:
            _warn_of_failed(env, ran.keys() - played.keys())
        merged[env] = _mean(list(played.values())) if played else next(iter(logs.values()))[0]
    return merged


def _warn_of_failed(env: str, ranks: Collection[int]) -> None:
    if ranks and group.is_main():
        warn(
            f"rollouts: rank(s) {listed(sorted(ranks))} played no episode of {env}, since "
            "its simulator failed (a rank's traceback is in the run's logs/log_rank<k>.txt). "
            "The statistics are those of the other ranks' episodes."
        )


def _mean(logs: list[tuple[dict[str, float], int]]) -> dict[str, float]:
    total = sum(episodes for _, episodes in logs)
    merged = {}
    for name in logs[0][0]:
        values = [(log[name], episodes) for log, episodes in logs]
        summed = sum(value for value, _ in values)
        weighted = sum(value * episodes for value, episodes in values) / total
        merged[name] = summed if name == "Time_Episode" else weighted
    return merged
