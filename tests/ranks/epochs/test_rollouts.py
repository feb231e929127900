"""Rollouts on several ranks: the episodes are split, and they are the same ones as on one rank."""

from __future__ import annotations

import inspect
import io
import time
from collections import OrderedDict
from contextlib import redirect_stderr, redirect_stdout
from datetime import timedelta

import numpy as np
import pytest
import torch
import torch.distributed as dist

from robomimic_ddp import api
from robomimic_ddp.distributed import group, rng
from robomimic_ddp.training.rollouts import split
from tests.faults.toy_run import Section, ToyJob, train
from tests.ranks.pool import RankError

SEED = 7


class Env:
    """Places its block by numpy's global stream, as robosuite and gym environments do."""

    name = "reach"

    def __init__(self):
        self.resets = 0

    def reset(self):
        self.resets += 1
        self.place = np.random.rand()
        return self.place


class Simulator:
    """As robosuite 1.5: a private generator, with the same seed on every rank."""

    def __init__(self):
        self.rng = np.random.default_rng(0)


class SimulatorEnv(Env):
    """As the host's wrapper of it: `env` is the simulator, whose parts share its generator."""

    def __init__(self):
        super().__init__()
        self.env = Simulator()
        self.sampler = self.env.rng

    def reset(self):
        self.resets += 1
        return self.sampler.random()


def host_rollouts(policy, envs, horizon, num_episodes=None, video_dir=None, epoch=None):
    """A host's function in small: a policy that draws torch noise, means over its episodes."""
    statistics = OrderedDict()
    for key, env in envs.items():
        logs = [policy(env.reset()) for _ in range(num_episodes)]
        statistics[key] = {name: np.mean([log[name] for log in logs]) for name in logs[0]}
        statistics[key]["Time_Episode"] = float(num_episodes)
    return statistics, OrderedDict.fromkeys(envs, video_dir)


def on_ranks(rollout_with_stats):
    def call(*args, **kwargs):
        bound = inspect.signature(rollout_with_stats).bind(*args, **kwargs)
        return split(rollout_with_stats, bound, SEED)

    return call


def noisy(seen):
    def policy(place):
        found = place + torch.rand(()).item()
        seen.append(found)
        return {"Return": found, "Success_Rate": float(found > 1.0)}

    return policy


def run(episodes, epoch=3, envs=("a", "b")):
    seen, before = [], rng.capture()["torch"]
    made = {name: Env() for name in envs}
    function = on_ranks(host_rollouts)
    result = function(noisy(seen), made, 5, num_episodes=episodes, video_dir="v", epoch=epoch)
    untouched = torch.equal(before, rng.capture()["torch"])
    put_back = all("reset" not in vars(env) for env in made.values())
    return result, seen, [env.resets for env in made.values()], untouched and put_back


def every_episode(answers, episodes):
    """What the policies saw, in the order of (environment, episode)."""
    world = len(answers)
    seen = [iter(answer[1]) for answer in answers]
    return [next(seen[episode % world]) for _ in range(2) for episode in range(episodes)]


@pytest.mark.parametrize("episodes", [1, 5])
def test_statistics_are_those_of_all_episodes_on_every_rank(ranks, episodes):
    """The episodes do not depend on the number of ranks."""
    before = None
    for world in (2, 3):
        answers = ranks.run(run, episodes, world_size=world)
        found = every_episode(answers, episodes)
        assert before in (None, found)
        before = found
        assert len(set(found)) == 2 * episodes  # each draws for itself
        for rank, ((statistics, videos), seen, resets, clean) in enumerate(answers):
            share = len(range(rank, episodes, world))
            assert resets == [share, share] and len(seen) == 2 * share
            assert clean
            for number, env in enumerate("ab"):
                own = found[number * episodes : (number + 1) * episodes]
                np.testing.assert_allclose(statistics[env]["Return"], np.mean(own), rtol=1e-12)
                hits = np.mean([place > 1.0 for place in own])
                np.testing.assert_allclose(statistics[env]["Success_Rate"], hits, rtol=1e-12)
                assert statistics[env]["Time_Episode"] == episodes
            assert videos == ({"a": "v", "b": "v"} if rank == 0 else {})
        assert all(answer[0][0] == answers[0][0][0] for answer in answers)


def places(episodes):
    seen, envs = [], {"a": SimulatorEnv()}

    def policy(place):
        seen.append(place)
        return {"Return": place}

    on_ranks(host_rollouts)(policy, envs, 5, num_episodes=episodes)
    return seen


def test_a_simulator_with_a_generator_of_its_own_draws_each_episode_once(ranks):
    """Without care, ranks would simulate the same episodes twice, and count them twice."""
    two, three = ranks.run(places, 5), ranks.run(places, 5, world_size=3)
    assert len({place for seen in two for place in seen}) == 5
    assert [two[n % 2][n // 2] for n in range(5)] == [three[n % 3][n // 3] for n in range(5)]


def test_another_epoch_has_other_episodes(ranks):
    assert every_episode(ranks.run(run, 4, 3), 4) != every_episode(ranks.run(run, 4, 4), 4)


def test_one_rank_is_the_host():
    with rng.kept():
        torch.manual_seed(0), np.random.seed(0)
        seen, envs = [], {"a": Env()}
        plain = host_rollouts(noisy(seen), envs, 5, num_episodes=3)
        torch.manual_seed(0), np.random.seed(0)
        function = on_ranks(host_rollouts)
        assert function(noisy(seen), envs, 5, num_episodes=3) == plain


def without_episodes():
    on_ranks(host_rollouts)(noisy([]), {"a": Env()}, 5, num_episodes=0)


def test_no_episodes_is_one_clear_error(ranks):
    with pytest.raises(RankError, match="experiment.rollout.n to 1 or more"):
        ranks.run(without_episodes)


def one_rollout(policy, env):
    """A host's function that says nothing of episodes; it draws and writes a video."""
    return {"Return": policy(env.reset())["Return"]}, {"reach": "video"}


def of_main():
    seen, before = [], rng.capture()["torch"]
    result = on_ranks(one_rollout)(noisy(seen), Env())
    return result, len(seen), torch.equal(before, rng.capture()["torch"])


def test_a_function_that_names_no_episodes_plays_on_the_main_rank_alone(ranks):
    (first, played, kept), (second, not_played, also_kept) = ranks.run(of_main)
    assert (played, not_played, kept, also_kept) == (1, 0, True, True)
    assert first[0] == second[0] and first[0]["Return"] > 0
    assert (first[1], second[1]) == ({"reach": "video"}, {})


def made_one_by_one(episodes, made):
    seen = []

    def host(policy, envs, num_episodes=None, epoch=None):
        logs = {
            str(number): [policy(env.reset()) for _ in range(num_episodes)]
            for number, env in enumerate(envs)
        }
        return {
            name: {"Return": np.mean([log["Return"] for log in of])} for name, of in logs.items()
        }

    envs = [Env(), Env()]
    given = (env for env in envs) if made else envs
    on_ranks(host)(noisy(seen), given, num_episodes=episodes, epoch=3)
    return None, seen, ["reset" in vars(env) for env in envs]


def test_environments_in_a_list_or_made_one_by_one_have_the_same_episodes(ranks):
    listed, made = (ranks.run(made_one_by_one, 3, kind) for kind in (False, True))
    assert every_episode(listed, 3) == every_episode(made, 3) == every_episode(ranks.run(run, 3), 3)
    assert [answer[2] for answer in listed + made] == [[False, False]] * 4


def patient(folder, rank_of_slow):
    rank = dist.get_rank()
    group.leave()  # not at once, in torch 2.0
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/again",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=2),
    )
    with group.without_time_limit() as waiting:
        if rank == rank_of_slow:
            time.sleep(4)
        return group.gather_objects(rank, within=waiting)


def test_a_rank_that_is_done_early_waits_beyond_the_time_limit(ranks, tmp_path):
    assert ranks.run(patient, str(tmp_path), 1) == [[0, 1], [0, 1]]


class Logger:
    """The host's DataLogger, of which only what it was given is kept."""

    def __init__(self):
        self.records = {}

    def record(self, key, value, epoch, log_stats=False):
        self.records[key, epoch, log_stats] = value


def robocasa_rollouts(policy, envs, horizon, num_episodes=None, epoch=None, data_logger=None):
    """robocasa's function in small: it makes the environments one by one, skips those that it could
    not make, has -1 for those whose simulator fails, and logs its statistics itself.
    """
    statistics = OrderedDict()
    for env, _ in zip(envs, horizon):
        if env is None:
            continue
        logs = []
        for _ in range(num_episodes):
            try:
                logs.append(policy(env.reset()))
            except ValueError:
                break
        if logs:
            log = {name: np.mean([log[name] for log in logs]) for name in logs[0]}
            statistics[env.name] = {**log, "Horizon": 9.0, "Time_Episode": float(len(logs))}
        else:
            statistics[env.name] = {"Time_Episode": -1, "Return": -1, "Success_Rate": -1}
        if data_logger is not None:
            for name, value in statistics[env.name].items():
                data_logger.record(f"own/{name}", value, epoch)
    return statistics, None


class Named(Env):
    """fails_on: the ranks on which its simulator fails; not_made_on: those that lack it."""

    def __init__(self, name, fails_on=(), not_made_on=()):
        super().__init__()
        self.name, self.fails_on, self.not_made_on = name, fails_on, not_made_on

    def reset(self):
        if group.rank() in self.fails_on:
            raise ValueError("the simulator broke")
        return super().reset()


def as_in_robocasa(*made):
    """Collective: statistics, what was logged, and the warnings."""
    envs = (None if group.rank() in env.not_made_on else env for env in (Named(*a) for a in made))
    seen, logger = [], Logger()
    with redirect_stderr(io.StringIO()) as errors, redirect_stdout(io.StringIO()):
        statistics, videos = on_ranks(robocasa_rollouts)(
            noisy(seen), envs, [5] * len(made), num_episodes=5, epoch=3, data_logger=logger
        )
    assert videos is None
    return statistics, logger.records, errors.getvalue(), seen


def test_a_rank_whose_simulator_failed_is_left_out_and_named(ranks):
    """robocasa has success -1 there; the means of all would have been of neither."""
    failing, other = 0, 1
    for env in (("pan", [failing]), ("pan", [], [failing])):
        answers = ranks.run(as_in_robocasa, ("pot",), env)
        for statistics, _, _, _ in answers:
            assert list(statistics) == ["pot", "pan"]
            pan = answers[other][3][-len(range(other, 5, 2)) :]
            np.testing.assert_allclose(statistics["pan"]["Return"], np.mean(pan), rtol=1e-12)
            assert statistics["pot"]["Time_Episode"] == 5 and statistics["pan"]["Horizon"] == 9
        assert f"rank(s) {failing} played no episode of pan" in answers[0][2]
        assert "pot" not in answers[0][2] and answers[1][2] == ""


def test_where_every_rank_failed_the_statistics_are_the_hosts(ranks):
    answers = ranks.run(as_in_robocasa, ("pan", [0, 1]))
    assert [answer[0]["pan"] for answer in answers] == [
        {"Time_Episode": -1, "Return": -1, "Success_Rate": -1}
    ] * 2


def test_what_the_rollouts_log_themselves_is_of_all_ranks(ranks):
    answers = ranks.run(as_in_robocasa, ("pot",))
    for statistics, records, _, _ in answers:
        pot = dict(statistics["pot"])
        minutes = pot.pop("Time_Episode")
        assert records == {
            ("Timing_Stats/Rollout_pot_Episode", 3, False): minutes,
            **{(f"Rollout/{name}/pot", 3, True): value for name, value in pot.items()},
        }


def batched_in_a_run(batched):
    """Collective: this rank's number of episodes, statistics and output, in a run of robocasa's."""
    seen = []

    def play(job):
        envs = iter([Env()])
        host = api.rollouts(robocasa_rollouts)
        seen.append(host(lambda place: seen.append(place) or {"Return": place}, envs, [5], 4, 1))

    job = ToyJob({"epoch ends": play})
    job.config.experiment["rollout"] = Section(enabled=True, batched=batched)
    with redirect_stdout(io.StringIO()) as output:
        train(job)
    *places, result = seen
    return len(places), result[0], output.getvalue()


def test_vector_environments_are_the_main_ranks(ranks):
    """A rank cannot seed their processes: several would play the same episodes, and count each."""
    (first, statistics, output), (second, same, quiet) = ranks.run(batched_in_a_run, True)
    assert (first, second) == (4, 0) and statistics == same
    line = "rollouts: rank 0 plays all episodes (experiment.rollout.batched:"
    assert output.count(line) == 1 and not quiet
    assert [answer[0] for answer in ranks.run(batched_in_a_run, False)] == [2, 2]
