"""Images of the first batch and rollout videos reach TensorBoard and W&B by the host's logger."""

from __future__ import annotations

import sys
import weakref
from contextlib import ExitStack
from types import ModuleType, SimpleNamespace

import imageio
import numpy as np
import pytest
import torch

from robomimic_ddp import api
from robomimic_ddp.monitoring import pictures, step_hooks
from robomimic_ddp.training import epoch
from tests.ranks.running import running

NHWC = np.arange(2 * 3 * 16 * 12 * 3, dtype=np.uint8).reshape(2, 3, 16, 12, 3)


def config_of(name: str) -> SimpleNamespace:
    logging = SimpleNamespace(wandb_proj_name="project")
    meta = {"hp_keys": [], "hp_values": []}
    experiment = SimpleNamespace(name=name, logging=logging)
    return SimpleNamespace(experiment=experiment, meta=meta, algo_name="bc")


@pytest.fixture
def wandb(monkeypatch):
    """A stand-in, that notes what it is given."""
    module = ModuleType("wandb")
    module.logged, module.config = [], SimpleNamespace(update=lambda values: None)
    module.init = lambda **given: None
    module.finish = lambda: None
    module.log = lambda values, step: module.logged.append((values, step))
    module.Image = lambda image: ("image", image.shape)
    module.Video = lambda path: ("video", path)
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


@pytest.fixture
def present(tmp_path):
    """The present run, and a DataLogger class of the host's, decorated as `apply` does."""
    from robomimic.utils.log_utils import DataLogger

    (tmp_path / "run").mkdir()
    with running(tmp_path / "run") as run:
        of_host = {"__module__": DataLogger.__module__}
        run.logger = api.data_logger(type("Logger", (DataLogger,), of_host))
        yield run


@pytest.fixture
def video(tmp_path):
    path = tmp_path / "lift_epoch_4.mp4"
    with imageio.get_writer(path, fps=20) as writer:
        for level in range(0, 200, 10):
            writer.append_data(np.full((32, 48, 3), level, dtype=np.uint8))
    return path


def tags(folder) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("events.out.tfevents*"))


def test_images_of_a_batch_are_a_row_for_each_camera():
    obs = {
        "stacked": torch.from_numpy(NHWC),
        "plain": NHWC[:, 0],
        "floats": torch.from_numpy(NHWC[:, 0]).permute(0, 3, 1, 2) / 255.0,
        "state": torch.zeros(2, 3, 7),
        "features": torch.zeros(2, 64, 4, 4),
        "tiny": torch.zeros(2, 2, 2, 3, dtype=torch.uint8),
    }
    found = dict(pictures.rows(obs))
    row = np.concatenate([NHWC[0, 0], NHWC[1, 0]], axis=1)
    assert set(found) == {"stacked", "plain", "floats"}
    assert all(np.array_equal(image, row) for image in found.values())


def test_the_first_batch_and_videos_are_logged_once(present, wandb, video, tmp_path, capsys):
    logger = present.logger(str(tmp_path), config_of("one"), log_tb=True, log_wandb=True)
    host = SimpleNamespace(process_batch_for_training=lambda batch: batch, log_info=dict)
    present.output.pictures.epoch = 3
    with step_hooks.installed(host, [present.output.pictures]):
        for _ in range(2):
            host.process_batch_for_training({"obs": {"camera": torch.from_numpy(NHWC)}})
            assert host.log_info({"Loss": 1.0}) == {"Loss": 1.0}

    def rollout_with_stats(policy, envs, num_episodes, epoch=None):
        return {"lift": {"Return": 1.0}}, {"lift": str(video)}

    host = epoch.rollouts(rollout_with_stats)
    assert host(None, {"lift": None}, 1, epoch=4)[1] == {"lift": str(video)}
    logger.close()
    assert wandb.logged == [
        ({"First_Batch/camera": ("image", (1, 16, 24, 3))}, 3),
        ({"Rollout/Video/lift": ("video", str(video))}, 4),
    ]
    events = tags(tmp_path)
    assert events.count(b"First_Batch/camera") == 1 and b"Rollout/Video/lift" in events
    assert capsys.readouterr().err == ""


def test_a_logger_before_robomimic_0_5_takes_images_with_an_axis_of_samples(tmp_path, capsys):
    tensorboard = pytest.importorskip("tensorboardX").SummaryWriter(str(tmp_path))

    def record(k, v, epoch, data_type="scalar", log_stats=False):
        tensorboard.add_images(k, img_tensor=v, global_step=epoch, dataformats="NHWC")

    drawn = pictures.Pictures(SimpleNamespace(record=record), skips_batch=False)
    drawn.batch({"obs": {"camera": torch.from_numpy(NHWC)}})
    tensorboard.close()
    assert (capsys.readouterr().err, tags(tmp_path).count(b"First_Batch/camera")) == ("", 1)


def test_a_resumed_run_has_its_first_batch(present, tmp_path):
    present.resume.source = object()
    logger = present.logger(str(tmp_path), config_of("one"), log_tb=True)
    present.output.pictures.batch({"obs": {"camera": torch.from_numpy(NHWC)}})
    logger.close()
    assert b"First_Batch" not in tags(tmp_path)


def test_without_logs_and_without_images_nothing_happens(present, tmp_path):
    present.logger(str(tmp_path), config_of("one"), log_tb=False)
    assert present.output.pictures is None
    logger = present.logger(str(tmp_path), config_of("one"), log_tb=True)
    present.output.pictures.batch({"obs": {"state": torch.zeros(2, 7)}})
    present.output.pictures.videos(None, 1)
    logger.close()
    assert b"First_Batch" not in tags(tmp_path)


class Reader(ExitStack):
    """A video of `count` frames, and the most that were in memory at once."""

    def __init__(self, count):
        super().__init__()
        self.count, self.most = count, 0

    def __iter__(self):
        frames = []
        for number in range(self.count):
            frame = np.full((8, 8, 3), number)
            frames.append(weakref.ref(frame))
            yield frame
            self.most = max(self.most, sum(ref() is not None for ref in frames))


@pytest.mark.parametrize("count", [1, 7, 8, 17, 500])
def test_few_frames_of_a_long_video_are_in_memory(count, monkeypatch):
    reader = Reader(count)
    monkeypatch.setattr(imageio, "get_reader", lambda path: reader)
    numbers = pictures._frames("a.mp4")[:, 0, 0, 0].tolist()
    gaps = np.diff(numbers)
    assert reader.most <= 20 and len(numbers) == min(8, count) and numbers[0] == 0
    assert (gaps > 0).all() and 4 * count / 5 <= numbers[-1] + count / 8 + 1
    assert count < 17 or gaps.max() <= count / 4


def test_what_cannot_be_drawn_is_a_warning(present, tmp_path, capsys):
    logger = present.logger(str(tmp_path), config_of("one"), log_tb=True)
    present.output.pictures.videos({"lift": str(tmp_path / "none.mp4")}, 1)
    assert "warning: frames of" in capsys.readouterr().err
    logger.close()


def test_wandb_itself_takes_them_offline(present, video, tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="wandb, which brings 21 other packages, is in no extra")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = present.logger(str(tmp_path), config_of("one"), log_tb=False, log_wandb=True)
    present.output.pictures.batch({"obs": {"camera": torch.from_numpy(NHWC)}})
    present.output.pictures.videos({"lift": str(video)}, 1)
    logger.close()
    (run_of_wandb,) = (tmp_path / "wandb").glob("offline-run-*")
    assert list(run_of_wandb.rglob("First_Batch/camera*.png"))
    assert list(run_of_wandb.rglob("Rollout/Video/lift*.mp4"))
