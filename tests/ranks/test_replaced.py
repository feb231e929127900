"""Every attribute of a host, or of another package, that is replaced has a row in the tables of
docs/how_it_works.md, and every row is true.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import os
import re
import sys
import threading
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import robomimic_ddp
from robomimic_ddp.checkpoint import weights
from robomimic_ddp.config import json_config, monkeypatch
from robomimic_ddp.data.rlds import octo_statistics, tfds_sharding
from robomimic_ddp.distributed import comm_hooks, main_rank
from robomimic_ddp.training import rollouts
from robomimic_ddp.training import run_directory as directory
from robomimic_ddp.training.step import (
    activation_checkpointing,
    compile,
    convolutions,
    schedule,
    sync_batchnorm,
)
from tests.configs import make_config, write_config
from tests.hosts import ROOT, Host
from tests.ranks.hosted import train_on_rank
from tests.ranks.pool import RankPool
from tests.runs import run_directory
from tests.versions import NEEDS_CALL_PLACE, NEEDS_OPTIMIZER_HOOKS

pytestmark = [NEEDS_CALL_PLACE, NEEDS_OPTIMIZER_HOOKS, pytest.mark.timeout(300)]

PACKAGE = str(Path(robomimic_ddp.__file__).parent)
PREPARE = importlib.import_module("robomimic_ddp.training.step.presets")
OPTIONS = {
    "accumulate": 2,
    "activation_checkpointing": True,
    "compile": "true",
    "comm": "powersgd:2",
}
Replaced = tuple[str, str, str]
"""(object, attribute, our module), as the tables name them."""


def rows() -> set[Replaced]:
    """Of the tables, each attribute."""
    found = set()
    for line in (ROOT / "docs" / "how_it_works.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 4 or not cells[3].endswith(".py`"):
            continue
        owner, attributes, _, module = cells
        for attribute in re.findall("`([^`]+)`", attributes):
            found.add((owner.replace("`", ""), attribute, module.strip("`")))
    return found


def name_of(owner: Any) -> str | None:
    """What the tables call `owner`; None for an object of ours."""
    if isinstance(owner, ModuleType):
        is_octo = octo_statistics.NAME in vars(owner)
        return "octo.data.dataset and its copies" if is_octo else owner.__name__
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__name__}"
    if isinstance(owner, nn.Module):
        return "its nets"
    if isinstance(owner, torch.optim.Optimizer):
        return "its optimizers"
    if hasattr(owner, "get_last_lr"):
        return "its schedules"
    if hasattr(owner, "copy_to"):
        return "its average"
    if type(owner).__module__.startswith("robomimic_ddp"):
        return None
    if isinstance(owner, argparse.Namespace):
        return "the parsed arguments"
    return "the algorithm" if hasattr(owner, "train_on_batch") else "an environment"


@contextlib.contextmanager
def noted() -> Iterator[set[Replaced]]:
    """What is replaced within the block: by `swapped`, or as the class of a net."""
    found: set[Replaced] = set()
    set_on_module = nn.Module.__setattr__

    def note(owner: Any, attribute: str) -> None:
        frame = sys._getframe(2)
        while frame.f_code.co_filename in (monkeypatch.__file__, contextlib.__file__):
            frame = frame.f_back
        name, file = name_of(owner), frame.f_code.co_filename
        if name is not None and file.startswith(PACKAGE):
            found.add((name, attribute, os.path.relpath(file, PACKAGE)))

    def set_by_swapped(owner: Any, attribute: str, value: Any) -> None:
        if sys._getframe(2).f_code.co_name == "__enter__":  # not where it is put back
            note(owner, attribute)
        setattr(owner, attribute, value)

    def on_module(self: nn.Module, attribute: str, value: Any) -> None:
        put_back = sys._getframe(1).f_code.co_filename == contextlib.__file__
        if attribute == "__class__" and not put_back:
            note(self, attribute)
        set_on_module(self, attribute, value)

    with mock.patch.object(monkeypatch, "setattr", set_by_swapped, create=True):
        with mock.patch.object(nn.Module, "__setattr__", on_module):
            yield found


@contextlib.contextmanager
def loaded(*modules: ModuleType) -> Iterator[None]:
    """For the block, `import` finds `modules`; what else it loads stays loaded."""
    before = {module.__name__: sys.modules.get(module.__name__) for module in modules}
    sys.modules.update({module.__name__: module for module in modules})
    try:
        yield
    finally:
        for name, module in before.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module


def replaced_in_a_run(host: str, folder: str, *arguments: str) -> set[Replaced]:
    """Collective: what the host's own train script has replaced on it, as on a GPU with wandb."""
    wandb = ModuleType("wandb")
    wandb.__spec__ = ModuleSpec("wandb", None)  # diffusers asks for it where it is imported first
    wandb.__getattr__ = lambda name: mock.MagicMock()
    bounds = {"LEAST_WEIGHTS": 0, "WEIGHTS_PER_ROW": 0}
    with contextlib.ExitStack() as stack:
        found = stack.enter_context(noted())
        stack.enter_context(loaded(wandb))
        stack.enter_context(mock.patch.object(compile, "BACKEND", "eager"))
        stack.enter_context(mock.patch.object(comm_hooks, "POWERSGD_START", 2))
        stack.enter_context(mock.patch.object(torch, "compile", lambda forward, **_: forward))
        stack.enter_context(mock.patch.object(PREPARE, "_device", lambda nets: "cuda"))
        stack.enter_context(mock.patch.multiple(convolutions, **bounds))
        call = (host, "tests.e2e.killed_train", True, "none", folder, *arguments)
        code, printed = train_on_rank(*call)
        assert code == 0, printed
    import robomimic.utils.log_utils as LogUtils

    for owner in (LogUtils.PrintLogger, LogUtils.DataLogger):
        for attribute, value in vars(owner).items():
            file = getattr(getattr(value, "__code__", None), "co_filename", "")
            if file.startswith(PACKAGE):
                found.add((name_of(owner), attribute, os.path.relpath(file, PACKAGE)))
    return found


def replaced_in_rollouts() -> set[Replaced]:
    """Collective."""

    def rollout_with_stats(policy: Any, envs: dict, num_episodes: int, epoch: int = 0) -> dict:
        return {name: {"Return": 1.0} for name in envs}

    env = SimpleNamespace(reset=lambda: None)
    with noted() as found:
        call = inspect.signature(rollout_with_stats).bind(None, {"lift": env}, 2)
        rollouts.split(rollout_with_stats, call, 0)
    return found


def config_from_a_pipe(folder: Path) -> None:
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=('{"algo_name": "bc"}',))
    writer.start()
    with json_config.checked_config(argparse.Namespace(config=str(pipe))):
        writer.join()


def directory_of_a_taken_name(folder: Path) -> None:
    tries = []

    def get_exp_dir() -> tuple:
        tries.append(1)
        if len(tries) < 2:
            raise FileExistsError("taken")
        (folder / "run" / "logs").mkdir(parents=True)
        return (str(folder / "run" / "logs"),)

    with contextlib.ExitStack() as undo, mock.patch.object(directory.time, "sleep"):
        directory._new_directory(SimpleNamespace(undo=undo), get_exp_dir)


def checkpoint_reader(folder: Path) -> None:
    reader = ModuleType("robomimic.utils.file_utils")
    reader.load_dict_from_checkpoint = torch.load
    torch.save({}, folder / "last.pth")
    with loaded(reader), weights.read_on_cpu("robomimic"):
        reader.load_dict_from_checkpoint(folder / "last.pth")


def second_forward_of_a_batch_norm(folder: Path) -> None:
    with activation_checkpointing._StatisticsStandStill(nn.BatchNorm2d(1)):
        pass


def batch_norms_of_all_ranks(folder: Path) -> None:
    model = SimpleNamespace(nets=nn.ModuleDict({"norm": nn.BatchNorm2d(1)}))
    two = mock.patch.object(sync_batchnorm.group, "world_size", lambda: 2)
    with two, contextlib.ExitStack() as undo:
        sync_batchnorm.install(model, "true", [], undo)


def pipeline_of_octo(folder: Path) -> None:
    """Stand-ins with TensorFlow's names, and octo's function."""

    class Dataset:
        def __iter__(self) -> Iterator:
            return iter(())

        def reduce(self) -> None: ...

    class DatasetBuilder:
        def as_dataset(self) -> None: ...

    Dataset.__module__, DatasetBuilder.__module__ = "tensorflow.data", "tensorflow_datasets.core"
    tf, tfds = ModuleType("tensorflow"), ModuleType("tensorflow_datasets")
    tf.data = SimpleNamespace(Dataset=Dataset)
    tfds.core = SimpleNamespace(DatasetBuilder=DatasetBuilder)
    octo = ModuleType("copy_of_octo")
    octo.get_dataset_statistics = lambda dataset, hash_dependencies, save_dir: None
    with contextlib.ExitStack() as stack:
        stack.enter_context(loaded(tf, tfds, octo))
        stack.enter_context(mock.patch.object(octo_statistics, "import_tensorflow"))
        stack.enter_context(mock.patch.object(tfds_sharding._Shares, "require_sharded"))
        stack.enter_context(octo_statistics.computed_once())
        tfds_sharding.make_sharded(lambda: None, (), {}, rank=0, world_size=2)


def main_rank_with_a_sharded_algorithm(folder: Path) -> None:
    algo = SimpleNamespace(serialize=dict, train_on_batch=None)
    with mock.patch.object(main_rank, "_is_sharded_algo", lambda value: value is algo):
        main_rank.main_rank_only(lambda model: None)(algo)


def schedules_of_steps(folder: Path) -> None:
    kinds = torch.optim.lr_scheduler
    for make in (
        lambda one: kinds.LambdaLR(one, lambda step: 1.0),
        lambda one: kinds.MultiStepLR(one, [2]),
        lambda one: kinds.LinearLR(one),
        lambda one: kinds.CosineAnnealingLR(one, 4),
    ):
        made = make(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0))
        algo = SimpleNamespace(
            lr_schedulers={"policy": made}, step_lr_schedulers_every_batch={"policy": True}
        )
        with contextlib.ExitStack() as undo:
            schedule.shorten(algo, 2, undo)


RARE = (
    schedules_of_steps,
    config_from_a_pipe,
    directory_of_a_taken_name,
    checkpoint_reader,
    second_forward_of_a_batch_norm,
    batch_norms_of_all_ranks,
    pipeline_of_octo,
    main_rank_with_a_sharded_algorithm,
)
"""What a short run on a CPU has no occasion for."""


@pytest.fixture(scope="module")
def replaced(
    tmp_path_factory: pytest.TempPathFactory,
    host_copy: Host,
    host_ranks: RankPool,
    image_dataset: Path,
) -> set[Replaced]:
    """Everything that is replaced on two ranks in a run, in the same one resumed, and in RARE."""
    folder = tmp_path_factory.mktemp("replaced")
    changes = {"experiment": {"logging": {"log_wandb": True}}, "ddp": OPTIONS}
    found: set[Replaced] = set()
    for epochs, more in ((2, ()), (3, ("--resume",))):
        changes["train"] = {"num_epochs": epochs}
        made = make_config("diffusion_policy_crops", image_dataset, folder / "runs", changes)
        file = write_config(folder / "config.json", made)
        call = (str(host_copy.folder), str(folder / "happened"), "--config", str(file), *more)
        found = found.union(*host_ranks.run(replaced_in_a_run, *call, timeout=100))
    assert run_directory(folder / "runs")
    found = found.union(*host_ranks.run(replaced_in_rollouts))
    for rare in RARE:
        with noted() as seen:
            rare(folder)
        found |= seen
    return found


def test_every_replacement_has_a_row(replaced: set[Replaced]) -> None:
    assert sorted(replaced - rows()) == []


def test_every_row_happens(replaced: set[Replaced]) -> None:
    assert sorted(rows() - replaced) == []


def test_every_module_that_replaces_has_a_row() -> None:
    """Other replacements than those of the runs above, by their source text.

    Those apart replace in a process that trains no run: launchers, and a command's import path.
    """
    apart = ("cli.py", "commands/launch/", "config/monkeypatch.py")
    files = {str(file.relative_to(PACKAGE)): file for file in Path(PACKAGE).rglob("*.py")}
    using = {
        name
        for name, file in files.items()
        if "swapped(" in file.read_text() and not name.startswith(apart)
    }
    assert sorted(using - {module for *_, module in rows()}) == []
