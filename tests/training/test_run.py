"""Random streams of ranks, learning rates, what a host's `resume` means, whose failure it is."""

from __future__ import annotations

import os
import random
from contextlib import ExitStack, nullcontext
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

from robomimic_ddp import api
from robomimic_ddp.data.sampling import JoinedLoaders
from robomimic_ddp.distributed import entry_point, rng
from robomimic_ddp.errors import DataError
from robomimic_ddp.monitoring.records import history
from robomimic_ddp.training import run, session
from tests.plans import planned_run
from tests.processes import rank_variables


def stream(seed: int, rank: int) -> tuple:
    """First draws of the three generators after `seed_streams`; the global streams are put back."""
    with rng.kept():
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)
        random.seed(seed)
        rng.seed_streams(seed, rank)
        return torch.randn(2).tolist(), np.random.rand(2).tolist(), [random.random()]


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1])
def test_streams_differ_over_ranks_and_repeat_for_a_rank(seed):
    streams = [stream(seed, rank) for rank in (0, 1, 2, 1023)]
    for kind in range(3):
        assert len({str(one[kind]) for one in streams}) == len(streams)
    assert stream(seed, 2) == streams[2]


def test_the_main_ranks_streams_are_the_hosts_own():
    torch.manual_seed(7)
    expected = torch.randn(2).tolist()
    assert stream(7, 0)[0] == expected


class HostConfig:
    """The parts of a host's config that a run reads."""

    train = {"seed": 1, "batch_size": 4}

    def __init__(self):
        self.train = SimpleNamespace(**self.train, get=self.train.get)


@pytest.mark.parametrize("is_on", [True, False])
def test_deterministic_holds_torch_to_its_word_for_the_run(is_on, monkeypatch):
    monkeypatch.setenv("ROBOMIMIC_DDP_DETERMINISTIC", str(is_on).lower())
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")  # the user's own choice stays
    with session.start(HostConfig(), use_cuda=False):
        assert torch.are_deterministic_algorithms_enabled() == is_on
        places = torch.tensor([0, 0])
        with pytest.raises(RuntimeError, match="deterministic") if is_on else nullcontext():
            torch.zeros(2).put_(places, torch.ones(2))
    assert not torch.are_deterministic_algorithms_enabled()
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def path_or_none(config, device, resume=None):
    return resume


def flag(config, device, resume=False):
    return resume


def required(config, device, resume):
    return resume


@pytest.mark.parametrize(
    ("train", "given", "host_resumes", "passed", "asked", "fine_tuning"),
    [
        (path_or_none, {"resume": "old.pth"}, False, "old.pth", False, True),
        (flag, {}, True, True, False, False),
        (required, {"resume": True}, False, False, True, False),
        (required, {"resume": "old.pth"}, False, "old.pth", False, True),
    ],
)
def test_only_a_flag_named_resume_is_ours_to_set(
    train, given, host_resumes, passed, asked, fine_tuning, monkeypatch
):
    seen = []

    def decide(config, run, host_asked, host_can):
        seen.append((host_asked, run.settings.fine_tuning))
        run.resume.by_host = host_resumes

    for module, name in (
        ("host_config_check", "require_possible"),
        ("run_inputs", "fill_rlds_data"),
    ):
        monkeypatch.setattr(getattr(session, module), name, lambda config: None)
    monkeypatch.setattr(session.run_inputs, "check_inputs", lambda *_: None)
    monkeypatch.setattr(session.resume, "decide", decide)
    config = HostConfig()
    config.experiment = {}
    assert api.distributed(train)(config, "cpu", **given) == passed
    assert seen == [(asked, fine_tuning)]


def test_the_learning_rate_is_scaled_for_algorithms_without_parallel_nets_too():
    assert planned_run(ranks=2, lr_scaling="none").scale_lr(1e-4) == 1e-4
    assert planned_run(ranks=1, lr_scaling="linear").scale_lr(1e-4) == 1e-4
    scaled = planned_run(ranks=2, lr_scaling="linear")
    assert scaled.scale_lr(1e-4) == 2e-4
    assert scaled.built.learning_rates == [(1e-4, 2e-4)]


def test_history_is_read_back_and_survives_a_cut_last_line(tmp_path):
    record = {"epoch": 1, "phase": "train", "log": {"Loss": np.float32(0.5), "odd": object}}
    history.append(tmp_path, record)
    history.append(tmp_path, {**record, "epoch": 2})
    path = tmp_path / history.FILE_NAME
    path.write_text(path.read_text() + '{"epoch": 3, "pha')
    assert [one["epoch"] for one in history.read(tmp_path)] == [1, 2]
    path.write_text("damaged\n" + path.read_text())
    with pytest.raises(DataError, match="line 1"):
        history.read(tmp_path)
    with pytest.raises(DataError, match="has no history"):
        history.read(tmp_path / "nowhere")
    path.rename(tmp_path / "nowhere")
    for name in ("20261123", "20261124"):
        (tmp_path / "name" / name).mkdir(parents=True)
        (tmp_path / "name" / name / history.FILE_NAME).touch()
    with pytest.raises(DataError, match=f"such as {tmp_path}/name/20261124"):
        history.read(tmp_path)


def test_a_well_known_failure_ends_with_its_remedy(monkeypatch, capfd):
    for name, text in rank_variables().items():
        monkeypatch.setenv(name, text)

    @entry_point.entry_point
    def main(text):
        raise RuntimeError(text)

    for text, words in (
        ("CUDA out of memory. Tried", "what to do: "),
        ("odd", "Traceback (most recent call last)"),
    ):
        with pytest.raises(SystemExit):
            main(text)
        reported = capfd.readouterr().err.strip().splitlines()
        assert reported[0] == f"error: RuntimeError: {text}" and reported[1].startswith(words), (
            reported
        )
        assert reported.count("Traceback (most recent call last):") == 1, reported


def test_an_error_is_reported_before_anything_is_undone(monkeypatch, capfd):
    """What is undone may wait for a GPU that hangs, until NCCL's watchdog ends the process."""
    for name, text in rank_variables().items():
        monkeypatch.setenv(name, text)
    answers = {"is_initialized": True, "world_size": 1}
    in_a_group = {name: mock.Mock(return_value=answer) for name, answer in answers.items()}
    monkeypatch.setattr(entry_point, "group", SimpleNamespace(**in_a_group))
    ends = SimpleNamespace(exit_with_workers=mock.Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setattr(entry_point, "end_process", ends)
    reported = []

    @entry_point.entry_point
    def main():
        with ExitStack() as undo:
            undo.callback(lambda: reported.append(capfd.readouterr().err))
            with entry_point.at_once():
                raise RuntimeError("planted")

    with pytest.raises(KeyboardInterrupt):
        main()
    assert "RuntimeError: planted" in reported[0]
    with pytest.raises(RuntimeError, match="outside"), entry_point.at_once():
        raise RuntimeError("outside of an entry point an error passes")


def raised(function) -> Exception:
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def test_only_a_collectives_own_error_is_a_follow_up():
    def of_a_library():
        raise RuntimeError("upload failed: Connection reset by peer")

    assert not entry_point.is_follow_up(raised(of_a_library))
    assert not entry_point.is_follow_up(raised(lambda: torch.distributed.all_reduce(torch.ones(1))))
    assert not entry_point.is_follow_up(ConnectionResetError("Connection reset by peer"))


def test_frames_of_all_train_loaders_are_counted():
    class Loader(list):
        def settled_frames(self):
            return {"frames_decoded": 4, "frames_delivered": 3, "frames_prefetched": 1}

    joined = JoinedLoaders(JoinedLoaders(Loader(), Loader()), ["a host's own"])
    assert run._frames(joined) == {
        name: 2 * count for name, count in Loader().settled_frames().items()
    }
    assert run._frames(Loader()) == Loader().settled_frames() and run._frames([]) is None
