"""A checkout of IsaacLab's shape, made at test time in our own words: a train script outside any
package that starts a simulator, makes the run directory and rewrites the dataset before `train()`,
and prints errors in place of raising them. Its simulator ends the process with 0, as Isaac Sim
does.
"""

from __future__ import annotations

from pathlib import Path

SCRIPT = '''"""Trains a policy of robomimic on recorded episodes of a task."""

from isaaclab.app import AppLauncher

launcher = AppLauncher(headless=True)
simulation = launcher.app

import argparse
import json
import os
import shutil
import time

import h5py
import numpy as np
import torch
import robomimic.utils.file_utils as FileUtils
import robomimic.utils.obs_utils as ObsUtils
import robomimic.utils.torch_utils as TorchUtils
import robomimic.utils.train_utils as TrainUtils
from robomimic.algo import algo_factory
from robomimic.config import config_factory
from robomimic.utils.log_utils import DataLogger
from torch.utils.data import DataLoader

import isaaclab_tasks


def scale_actions(config, log_dir):
    """Write a copy of the dataset whose actions are halved; return its path."""
    scaled = config.train.data[0]["path"].replace(".hdf5", "_scaled.hdf5")
    shutil.copyfile(config.train.data[0]["path"], scaled)
    with h5py.File(scaled, "r+") as file:
        for demo in file["data"].values():
            demo["actions"][:] = np.array(demo["actions"]) / 2
    with open(os.path.join(log_dir, "scale.txt"), "a") as file:
        file.write("2\\n")
    return [{"path": scaled}]


def train(config, device, log_dir, ckpt_dir):
    """Train for the epochs of `config`."""
    np.random.seed(config.train.seed)
    torch.manual_seed(config.train.seed)
    ObsUtils.initialize_obs_utils_with_config(config)
    env_meta = FileUtils.get_env_metadata_from_dataset(config.train.data[0]["path"])
    shape_meta = FileUtils.get_shape_metadata_from_dataset(
        config.train.data[0], action_keys=config.train.action_keys, all_obs_keys=config.all_obs_keys
    )
    data_logger = DataLogger(log_dir, config=config, log_tb=True)
    model = algo_factory(
        algo_name=config.algo_name,
        config=config,
        obs_key_shapes=shape_meta["all_shapes"],
        ac_dim=shape_meta["ac_dim"],
        device=device,
    )
    with open(os.path.join(log_dir, "..", "config.json"), "w") as outfile:
        json.dump(config, outfile)
    trainset, _ = TrainUtils.load_data_for_training(config, obs_keys=shape_meta["all_obs_keys"])
    train_loader = DataLoader(
        dataset=trainset,
        sampler=trainset.get_dataset_sampler(),
        batch_size=config.train.batch_size,
        shuffle=True,
        drop_last=True,
    )
    saved_at = time.time()
    for epoch in range(1, config.train.num_epochs + 1):
        step_log = TrainUtils.run_epoch(
            model=model,
            data_loader=train_loader,
            epoch=epoch,
            num_steps=config.experiment.epoch_every_n_steps,
        )
        model.on_epoch_end(epoch)
        print(f"Train Epoch {epoch}", json.dumps(step_log))
        data_logger.record("Train/Loss", step_log["Loss"], epoch)
        if time.time() - saved_at > 0:
            path = os.path.join(ckpt_dir, f"model_epoch_{epoch}.pth")
            TrainUtils.save_model(
                model=model,
                config=config,
                env_meta=env_meta,
                shape_meta=shape_meta,
                ckpt_path=path,
            )
    data_logger.close()
    isaaclab_tasks.report(model)


def main(args):
    """Train on a task, whose config the simulator's registry has."""
    settings = isaaclab_tasks.settings_of(args.task)
    config = config_factory(settings["algo_name"])
    with config.values_unlocked():
        config.update(settings)
    log_dir, ckpt_dir, *_ = TrainUtils.get_exp_dir(config)
    if args.scale:
        config.train.data = scale_actions(config, log_dir)
    device = TorchUtils.get_torch_device(try_to_use_cuda=config.train.cuda)
    config.lock()
    result = "finished run successfully!"
    try:
        train(config, device, log_dir, ckpt_dir)
    except Exception as error:
        result = f"run failed with error: {error}"
    print(result)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--task")
    parser.add_argument("--scale", action="store_true")
    main(parser.parse_args())
    simulation.close()
'''

SIMULATOR = '''"""Stands for isaaclab.app: says which GPU it uses, and ends its process."""

import atexit
import os
import sys


class App:
    def close(self, exit_code=0):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)


class AppLauncher:
    def __init__(self, headless, distributed=False):
        device = os.environ.get("LOCAL_RANK", "0") if distributed else "0"
        sys.stderr.write(f"simulator of rank {os.environ.get('RANK', '0')}: cuda:{device}\\n")
        sys.stdout = sys.__stdout__
        self.app = App()
        atexit.register(self.app.close)
'''

TASKS = '''"""Stands for the tasks that a simulator registers, named by their config's files."""

import hashlib
import json
import os


def settings_of(task):
    with open(task) as file:
        return json.load(file)


def report(model):
    """Write this rank's weights, as a digest, beside the task's config."""
    weights = b"".join(p.detach().numpy().tobytes() for p in model.nets.parameters())
    folder = os.environ["REPORTS"]
    with open(os.path.join(folder, os.environ.get("RANK", "0")), "w") as file:
        file.write(hashlib.sha256(weights).hexdigest())
'''

PLACE = "scripts/imitation_learning/robomimic/train.py"


def write_checkout(folder: Path) -> Path:
    """Write the checkout, with the simulator's packages in `folder`/source; return the script."""
    texts = {
        PLACE: SCRIPT,
        "scripts/imitation_learning/robomimic/play.py": "import robomimic\n",
        "source/isaaclab/__init__.py": "",
        "source/isaaclab/app.py": SIMULATOR,
        "source/isaaclab_tasks.py": TASKS,
    }
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / PLACE
