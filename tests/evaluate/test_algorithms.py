"""A worker acts with checkpoints of every algorithm, and says of those that only plan that they
cannot act.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from robomimic_ddp.commands.evaluate import checkpoints
from robomimic_ddp.commands.evaluate.worker import Player, reply
from tests.configs import VARIANTS, make_config, merged, uses_images
from tests.evaluate.point_env import PointEnv
from tests.tiers import slow_but

PLANNERS = ("gl", "gl_vae")
"""They plan, and have no policy."""
FAST = ("bc", "bc_rnn_gmm", "diffusion_policy_images", "hbc")


def save(folder: Path, variant: str, dataset: Path) -> Path:
    """An untrained checkpoint, as the host's train script makes it."""
    import robomimic.utils.file_utils as FileUtils
    import robomimic.utils.obs_utils as ObsUtils
    import robomimic.utils.train_utils as TrainUtils
    import torch
    from robomimic.algo import algo_factory
    from robomimic.config import config_factory

    plain = make_config(variant, dataset, folder, {"experiment": {"rollout": {"horizon": 3}}})
    config = config_factory(plain["algo_name"])
    with config.values_unlocked():
        config.update(merged(plain, {"train": {"num_epochs": 2}}))
        for part in (
            config.algo,
            *(config.algo[k] for k in ("planner", "actor") if k in config.algo),
        ):
            for net in part.get("optim_params", {}).values():
                net["num_train_batches"], net["num_epochs"] = 3, 2
    ObsUtils.initialize_obs_utils_with_config(config)
    shapes = FileUtils.get_shape_metadata_from_dataset(
        dataset_config={"path": str(dataset)},
        action_keys=config.train.action_keys,
        all_obs_keys=config.all_obs_keys,
    )
    meta = FileUtils.get_env_metadata_from_dataset(str(dataset))
    sizes = (shapes["all_shapes"], shapes["ac_dim"], torch.device("cpu"))
    model = algo_factory(config.algo_name, config, *sizes)
    path = folder / "model_epoch_1.pth"
    TrainUtils.save_model(model, config, meta, shapes, str(path), {"epoch": 1})
    return path


def task_of(path: Path) -> dict:
    """The first episode of the checkpoint's environment."""
    (environment,) = checkpoints.read(("a", 1, 1), path).environments
    task = {**asdict(environment), "env": environment.name, "video": None}
    return task | {
        **{"checkpoint": str(path), "episode": 0, "epoch": 1, "seed": 7, "offscreen": False}
    }


@pytest.fixture(autouse=True)
def simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed host simulates the point."""
    import robomimic.utils.env_utils as EnvUtils

    monkeypatch.setattr(EnvUtils, "get_env_class", lambda **_: PointEnv)


@pytest.mark.parametrize("variant", slow_but((*FAST, "gl"), VARIANTS))
def test_a_policy_acts_or_says_that_it_cannot(
    variant: str, tmp_path: Path, low_dim_dataset: Path, image_dataset: Path
) -> None:
    path = save(tmp_path, variant, image_dataset if uses_images(variant) else low_dim_dataset)
    answer = reply(Player(), task_of(path), 600.0)
    if variant in PLANNERS:
        assert answer["failed"] == "episode" and "not supported by GL" in answer["text"]
        return
    assert answer["unseeded"] is False and 1 <= answer["log"]["Horizon"] <= 3, answer


def test_an_episode_is_filmed_and_the_environment_used_again(
    tmp_path: Path, low_dim_dataset: Path
) -> None:
    path = save(tmp_path, "bc", low_dim_dataset)
    player, film = Player(), tmp_path / "videos" / "a.mp4"
    first = reply(player, {**task_of(path), "offscreen": True, "video": str(film)}, 600.0)
    assert film.stat().st_size > 0
    made = player.envs.copy()
    assert reply(player, {**task_of(path), "offscreen": True}, 600.0) == first
    assert player.envs == made and len(made) == 1
    failed = reply(player, {**task_of(path), "dataset": 0, "checkpoint": "none.pth"}, 600.0)
    assert failed["failed"] == "policy" and "does not exist" in failed["text"]


def test_an_environment_with_a_horizon_of_its_entry_ends_there(
    tmp_path: Path, low_dim_dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PointEnv, "near", 0.0)  # no episode succeeds
    player, task = Player(), task_of(save(tmp_path, "bc", low_dim_dataset))
    answers = [reply(player, {**task, "horizon": horizon}, 600.0) for horizon in (None, 2)]
    assert [answer["log"]["Horizon"] for answer in answers] == [3, 2]
