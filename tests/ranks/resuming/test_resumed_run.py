"""What a run finds in its folder when it resumes: an old marker, a damaged history, no state; and
what it refuses to save.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import time
from unittest import mock

import pytest
import torch

from robomimic_ddp import checkpoint
from robomimic_ddp.checkpoint import BEST, STATE, FoundRun
from robomimic_ddp.checkpoint.state_file import read_file
from robomimic_ddp.config import launch_env
from robomimic_ddp.config.launch_env import LaunchEnv
from robomimic_ddp.distributed import group
from robomimic_ddp.distributed import signals as stopping
from robomimic_ddp.errors import CheckpointError, Stopped
from robomimic_ddp.monitoring.records import history, run_files
from robomimic_ddp.training import epoch as seam
from robomimic_ddp.training import run_inputs
from robomimic_ddp.training.state import resume, state_saver
from tests.plans import planned_run
from tests.ranks.hosts import Algo, other_order_run_epoch, real_run_epoch
from tests.ranks.pool import RankError
from tests.ranks.running import running, train
from tests.ranks.toy import make_algo


def attempts(experiment, asked, counts, host_can=False, **launched):
    """What `decide` says in each of torchrun's attempts of one job."""
    run, said = planned_run(resume=asked), []
    for count in counts:
        launch = LaunchEnv(restart_count=count, run_id="old", **launched)
        with mock.patch.object(run_inputs, "experiment_directory", {"cfg": experiment}.get):
            with mock.patch.object(launch_env, "read_launch_env", lambda launch=launch: launch):
                try:
                    resume.decide("cfg", run, False, host_can)
                    found = run.resume.source
                    said.append(None if found is None else found.kind)
                except Stopped:
                    said.append("stopped")
    return said


@pytest.fixture
def stopped(tmp_path):
    """The folder of experiments, with one run that was stopped on request."""
    directory = tmp_path / "20260101"
    directory.mkdir()
    (directory / STATE).write_bytes(b"x")
    (directory / "ddp.json").write_text(json.dumps({"job": "old", "paths": ["a"]}))
    checkpoint.write_requeue(directory, {"stopped": "in epoch 2"})
    return tmp_path


def test_a_resumed_job_that_dies_while_it_starts_is_started_again(ranks, stopped):
    assert ranks.run(attempts, stopped, "true", (0, 1)) == [["state", "state"]] * 2
    assert not (stopped / "20260101" / run_files.REQUEUE).exists()


@pytest.mark.parametrize("asked", ["true", "auto", "false"])
def test_a_job_that_was_stopped_is_not_started_again(stopped, asked):
    with mock.patch.object(group, "leave") as leave:
        assert attempts(stopped, asked, (1,)) == ["stopped"]
    leave.assert_called_once_with()
    assert (stopped / "20260101" / run_files.REQUEUE).exists()


@pytest.mark.parametrize("restarts, found", [(0, "stopped"), (1, "state"), (2, "state")])
@pytest.mark.parametrize(("job", "asked"), [("old", "false"), ("before", "true")])
def test_ranks_that_torchrun_ended_for_another_node_are_started_again(
    stopped, restarts, found, job, asked
):
    """Such a restart is not counted; the marker has the count of the attempt that has stopped."""
    (stopped / "20260101" / "ddp.json").write_text(json.dumps({"job": job, "paths": ["a"]}))
    checkpoint.write_requeue(stopped / "20260101", {"stopped": "x", "restarts": restarts})
    assert attempts(stopped, asked, (1,)) == [found]
    marker = stopped / "20260101" / run_files.REQUEUE
    assert marker.exists() == (found == "stopped")


def attempt_of_uneven_nodes(experiment):
    """What is resumed where a node has replaced another one: torchrun counts from 0 there."""
    return attempts(experiment, "false", (group.rank(),))


def test_all_ranks_resume_where_a_node_has_replaced_another(ranks, stopped):
    (stopped / "20260101" / run_files.REQUEUE).unlink()
    assert ranks.run(attempt_of_uneven_nodes, stopped) == [["state"]] * 2


def begun(folder, **record):
    folder.mkdir(parents=True)
    (folder / "ddp.json").write_text(json.dumps({"job": "gone", "paths": ["logs"], **record}))


def test_a_requeued_job_resumes_its_run_and_no_other(tmp_path, capsys, monkeypatch):
    """Another job of the same config has begun later, or finished before."""

    def found():
        return attempts(tmp_path, "false", (0,), requeued=True)

    monkeypatch.setattr(resume.env, "launcher", lambda: "ours")
    begun(tmp_path / "20260103", launcher="ours")
    assert found() == [None]
    note = f"restart: this job has no folder in {tmp_path} yet; a new run begins"
    assert note in capsys.readouterr().out
    assert attempts(tmp_path / "other", "auto", (0,)) == [None]
    assert "ddp.resume=auto: nothing to resume in" in capsys.readouterr().out
    begun(tmp_path / "20260101", job="old", outcome={})
    assert found() == [None]
    begun(tmp_path / "20260102", job="old")
    for name in ("20260101", "20260103"):
        (tmp_path / name / STATE).write_bytes(b"x")
    assert found() == ["begun"]
    (tmp_path / "20260102" / STATE).write_bytes(b"x")
    assert found() == ["state"]
    begun(tmp_path / "20260104", job="old", outcome={})
    (tmp_path / "20260104" / STATE).write_bytes(b"x")
    (tmp_path / "20260102" / STATE).unlink()
    assert found() == ["state"], "it had finished"


def test_ranks_that_begin_again_for_another_node_resume_what_their_launcher_began(tmp_path):
    begun(tmp_path / "20260101", launcher="ours")
    begun(tmp_path / "20260102", job="old", launcher="another")
    (tmp_path / "20260102" / STATE).write_bytes(b"x")
    with mock.patch.object(resume.env, "launcher", lambda: "ours"):
        assert attempts(tmp_path, "false", (0,), elastic=True) == ["begun"]


@pytest.mark.parametrize("world_size", [1, 2])
def test_auto_resumes_what_there_is_and_else_begins(ranks, tmp_path, world_size):
    """A run without a state is begun again in its folder; a finished one without a state is not."""

    def found(experiment, asked="auto", count=0):
        return ranks.run(attempts, experiment, asked, (count,), world_size=world_size)

    experiment = tmp_path / "runs"
    assert found(experiment) == found(experiment, count=1) == [[None]] * world_size
    begun(experiment / "20260101", outcome={})
    assert found(experiment) == [[None]] * world_size
    begun(experiment / "20260102")
    assert found(experiment) == [["begun"]] * world_size
    (experiment / "20260101" / STATE).write_bytes(b"x")
    assert found(experiment) == [["state"]] * world_size
    for name in ("20260101", "20260102"):
        (experiment / name / STATE).unlink(missing_ok=True)
    with pytest.raises(RankError, match="nothing to resume"):
        found(experiment, "true")


@pytest.mark.parametrize("epochs, kind", [((), "host"), ((1, 1), "begun"), ((1, 2), "host")])
def test_auto_begins_a_run_again_that_ended_in_its_first_epoch(tmp_path, epochs, kind):
    """The host's last.pth is there, without random streams; of later epochs it is resumed."""
    directory = tmp_path / "20260101"
    begun(directory)
    (directory / "last.pth").write_bytes(b"")
    record = {"phase": "train", "log": {}}
    written = "".join(json.dumps({"epoch": one, **record}) + "\n" for one in epochs)
    (directory / "history.jsonl").write_text(written)
    assert attempts(tmp_path, "auto", (0,), host_can=True) == [kind]
    assert attempts(tmp_path, "true", (0,), host_can=True) == ["host"]


def test_a_run_without_our_state_is_the_hosts_and_says_so(tmp_path, capsys):
    (tmp_path / "20260101").mkdir()
    (tmp_path / "20260101" / "last.pth").write_bytes(b"")
    assert attempts(tmp_path, "true", (0,), host_can=True) == ["host"]
    said = capsys.readouterr().out
    assert f"20260101 has no {STATE}" in said and "start over" in said


def resume_run(directory):
    errors = io.StringIO()
    with running(directory, FoundRun(directory, "state")) as run:
        saver = state_saver.StateSaver(run, make_algo())
        with contextlib.redirect_stderr(errors):
            return saver.restore(), errors.getvalue()


def line(epoch):
    return json.dumps({"epoch": epoch, "phase": "train", "log": {}}) + "\n"


@pytest.mark.parametrize("damaged", ["not JSON\n", line("two")])
def test_a_damaged_history_does_not_stop_a_good_state(ranks, tmp_path, damaged):
    ranks.run(train, tmp_path, [0.5, 0.4])
    text = line(1) + damaged + line(2)
    (tmp_path / history.FILE_NAME).write_text(text)
    (epoch, warned), other = ranks.run(resume_run, tmp_path)
    assert epoch == 2 and other == (2, "")
    assert warned.count("warning:") == 1 and "The run continues" in warned
    assert (tmp_path / history.FILE_NAME).read_text() == text


def save_what_a_file_cannot_hold(directory):
    with running(directory) as run:
        algo = make_algo()
        if group.is_main():
            algo.optimizers["policy"].param_groups[0]["odd"] = object()
        saver = state_saver.StateSaver(run, algo)
        try:
            saver.epoch_end(1)
        except CheckpointError as error:
            return str(error)


def test_what_a_file_cannot_hold_is_an_error_at_the_first_save(ranks, tmp_path):
    reported = ranks.run(save_what_a_file_cannot_hold, tmp_path)
    assert (
        reported[0] == reported[1]
        and "is a object, which a state file cannot contain" in reported[0]
    )


def three_epochs(directory, returns):
    """The host measures nothing before epoch 2, and then `returns`."""
    with running(directory) as run:
        saver = state_saver.StateSaver(run, make_algo())
        best_valid_loss = resume.restored("best_valid_loss", None)
        best_return = resume.restored("best_return", {"reach": -1.0})
        saver.restore()
        for epoch in (1, 2, 3):
            if epoch == 2:
                best_return.update(returns)
            saver.epoch_end(epoch)
        return best_valid_loss


@pytest.mark.parametrize("returns, best", [({"reach": 0.5}, 2), ({}, None)])
def test_the_best_state_is_of_an_epoch_that_was_better(ranks, tmp_path, returns, best):
    ranks.run(three_epochs, tmp_path, returns)
    assert (tmp_path / STATE).exists() and (tmp_path / BEST).exists() == (best is not None)
    assert best is None or read_file(tmp_path / BEST)["epoch"] == best


STEPS, FIRST = 5, 6
"""Steps of an epoch, and the number of the first."""


def batches(first=0):
    """Every rank's own samples; the last batches have keys that the first have not."""
    rank = group.rank()
    return [
        {"actions": torch.tensor([[float(step * step + rank)], [3.0 * step], [7.0], [5.0]])}
        for step in range(first + FIRST, FIRST + STEPS + 5)
    ]


class Asked(Algo):
    """Rank 1 is asked to stop inside the last step of the epoch."""

    def log_info(self, info):
        self.steps = getattr(self, "steps", 0) + 1
        if group.rank() == 1 and self.steps == STEPS:
            os.kill(os.getpid(), signal.SIGUSR1)
        return super().log_info(info)


def asked_in_the_last_step(directory):
    with running(directory) as run, run.stopper.scope():
        saver = state_saver.StateSaver(run, make_algo())
        saver.restore()
        run.stopper.listen()
        run.progress.part.epoch = 1
        logged = seam.epoch_log(other_order_run_epoch)
        try:
            logged(Asked(), 1, batches(), STEPS)
        except Stopped:
            return "before validation"


def test_a_stop_heard_in_the_last_step_comes_before_validation(ranks, tmp_path):
    assert ranks.run(asked_in_the_last_step, tmp_path) == ["before validation"] * 2
    assert read_file(tmp_path / STATE)["inside"]["steps"] == STEPS
    marker = json.loads((tmp_path / run_files.REQUEUE).read_text())
    assert f"in epoch 1 after {STEPS} steps" in marker["stopped"]


def epoch_over_a_stop(directory, shape, stop_after, found):
    """The log of an epoch that stops after `stop_after` steps (None: never), and its samples as in
    the history; resumed if `found`.
    """
    run_epoch = real_run_epoch() if shape == "real" else other_order_run_epoch
    with running(directory, found) as run:
        run.built.loaders["train"] = batches()
        saver = state_saver.StateSaver(run, make_algo())
        saver.restore()
        run.progress.part.epoch = 1
        run.stopper.agreed = lambda: run.progress.part.steps == stop_after
        run.stopper.agreed_at_last = run.stopper.agreed
        logged, done = seam.epoch_log(run_epoch), run.progress.part.steps
        call = {"model": Algo(), "data_loader": batches(done), "epoch": 1, "num_steps": STEPS}
        try:
            result = logged(**call)
        except Stopped:
            return done
        assert run.progress.part.steps == 0, "the next epoch must begin with its first step"
        log = result[0] if isinstance(result, tuple) else result
        log = {key: value for key, value in log.items() if key[:5] != "Time_"}
        samples = history.read(directory)[-1]["samples"] if group.is_main() else None
        return log, samples


@pytest.mark.parametrize(
    "shape, stop_after, before, after",
    [
        ("real", 1, 1, 1),
        ("real", 3, 3, 2),
        ("other", 3, 2, 1),
        ("other", STEPS, 2, 3),
    ],
)
def test_the_log_of_a_stopped_epoch_is_of_all_its_steps(
    ranks, tmp_path, shape, stop_after, before, after
):
    call = (epoch_over_a_stop, tmp_path, shape)
    assert ranks.run(*call, stop_after, None, world_size=before, timeout=115.0) == [0] * before
    logs = ranks.run(*call, None, FoundRun(tmp_path, "state"), world_size=after, timeout=115.0)
    ranks_of_step = [before] * stop_after + [after] * (STEPS - stop_after)
    losses = [
        (step * step + rank + 3.0 * step + 7.0 + 5.0) / 4
        for step, world in enumerate(ranks_of_step, start=FIRST)
        for rank in range(world)
    ]
    expected = {"Loss": pytest.approx(sum(losses) / len(losses), rel=1e-6), "Large": 1.0}
    assert [log for log, _ in logs] == [expected] * after
    assert logs[0][1] == 4 * sum(ranks_of_step)


def asked_in_a_long_rollout(directory, epochs, signals):
    """Nothing collective can be done there; what is saved is the epoch before."""
    stopping.PATIENCE_SECONDS = 0.5
    os.environ["TORCHELASTIC_RUN_ID"] = "job"
    with running(directory) as run, run.stopper.scope():
        saver = state_saver.StateSaver(run, make_algo())
        saver.restore()
        run.stopper.listen()
        for epoch in range(1, epochs + 1):
            saver.epoch_end(epoch)
        for number in signals:
            os.kill(os.getpid(), number)
            time.sleep(0.2)
        time.sleep(60)


@pytest.mark.parametrize(
    ("epochs", "signals", "marked"),
    [
        (1, (signal.SIGUSR1,), True),  # torchrun, which passes it on, would kill
        (0, (signal.SIGUSR1, signal.SIGTERM), False),  # it would get no further another time
        (1, (signal.SIGTERM,), False),  # maybe torchrun's, of a job that has failed
    ],
)
def test_a_request_in_a_long_rollout_leaves_a_marker(ranks, tmp_path, epochs, signals, marked):
    with pytest.raises(RankError, match=f"died with exit code {128 + signal.SIGTERM}"):
        ranks.run(asked_in_a_long_rollout, tmp_path, epochs, signals)
    marker = tmp_path / run_files.REQUEUE
    assert marker.exists() == marked
    if marked:
        content = json.loads(marker.read_text())
        assert (
            content["saved"]["epoch"] == 1
            and "during epoch 2; that epoch will be" in content["stopped"]
        )
