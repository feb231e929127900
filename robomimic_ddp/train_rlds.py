"""The entry with a dot-list: `python -m robomimic.scripts.train_rlds load_from=cfg.json key=value
...`.

Command-line values override `load_from`. Our options are `ddp.<name>=value`.
"""

from __future__ import annotations

import inspect
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from robomimic_ddp.config import dotlist, env, json_config, tree
from robomimic_ddp.config.entry_options import Notes, attach_notes, notes_of
from robomimic_ddp.data.rlds.tf_import import import_triton_first
from robomimic_ddp.distributed import entry_point
from robomimic_ddp.errors import ConfigError
from robomimic_ddp.training import host_config

USAGE = (
    "usage: python -m robomimic.scripts.train_rlds load_from=CONFIG.json [key=value ...] "
    "[debug=true] [resume=true] [ddp.NAME=value]"
)
_FLAGS = ("load_from", "debug", "resume")
_MISPLACED = "train.optim_params"


@entry_point.entry_point
def main(arguments: Sequence[str] | None = None) -> None:
    """Trains as the dot-list says (default: `sys.argv`). Raises ConfigError on unknown keys and
    unreadable files.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if any(argument in ("-h", "--help") for argument in arguments):
        print(f"{__doc__}\n{USAGE}")
        return
    config, flags = build_config(arguments)
    import_triton_first()  # train.py of DROID's hosts imports TensorFlow before torchvision
    import robomimic.utils.torch_utils as TorchUtils
    from robomimic.scripts.train import train

    if not getattr(train, "is_distributed", False):
        raise ConfigError(
            f"the robomimic in use ({inspect.getfile(inspect.unwrap(train))}) is not patched, so "
            "every rank would train a separate model. Run `robomimic-ddp apply` on it first."
        )
    device = TorchUtils.get_torch_device(try_to_use_cuda=config.train.cuda)
    train(config, device=device)
    if env.read_launch_env().rank == 0:
        print("finished run successfully!")


def build_config(arguments: Sequence[str]) -> tuple[Any, Mapping[str, Any]]:
    """The host's locked config for a dot-list, and the flags load_from, debug, resume."""
    from robomimic.config import config_factory

    given = parse_dotlist(arguments)
    flags = {name: given.pop(name, None) for name in _FLAGS}
    for name in _FLAGS[1:]:
        if flags[name] not in (None, True, False):
            raise ConfigError(f"{name}={flags[name]!r}: expected true or false.")
    settings = {}
    if flags["load_from"] is not None:
        settings = json_config.read_json(flags["load_from"], "load_from=")
    for one in (settings, given):
        _move_misplaced(one)
    command_line_options = given.pop("ddp", None) or {}
    if not isinstance(command_line_options, Mapping):
        raise ConfigError(
            f"ddp={command_line_options!r}, but ddp is a section of options. Set one of them, such "
            "as ddp.lr_scaling=linear."
        )
    if flags["resume"]:
        command_line_options.setdefault("resume", flags["resume"])
    keys = tuple(key for key, _ in tree.named(given))
    settings = _merged(settings, given)
    algo_name = settings.get("algo_name")
    if algo_name is None:
        raise ConfigError(
            "found no algo_name; expected one from load_from=CONFIG.json or "
            f"algo_name=NAME.\n{USAGE}"
        )
    config = _host_config(config_factory, algo_name)
    host_config.prepare_config(config, settings)
    attach_notes(config, Notes(notes_of(config).file_options, dict(command_line_options), keys))
    with config.values_unlocked():
        config.update(settings)
    if flags["debug"]:
        _shorten(config)
    config.lock()
    return config, flags


def _merged(settings: Mapping, given: Mapping) -> dict:
    """`given` over `settings`, references such as ${train.seed} filled in."""
    try:
        return OmegaConf.to_container(OmegaConf.merge(settings, given), resolve=True)
    except OmegaConfBaseException as error:
        values = [item for one in (given, settings) for item in tree.named(one)]
        keys = [key for key, value in values if isinstance(value, str) and "${" in value]
        raise ConfigError(
            f"the settings could not be put together: {error}\nText with a dollar sign and a brace "
            f"(in {', '.join(keys[:3]) or 'a value'}) is a reference to another key; write \\${{ "
            "for the characters themselves."
        ) from error


def _host_config(config_factory: Any, algo_name: str) -> Any:
    try:
        return config_factory(algo_name)
    except Exception as error:
        raise ConfigError(
            f"algo_name={algo_name!r} is none of this host's algorithms ({error})."
        ) from error


def parse_dotlist(arguments: Sequence[str]) -> dict:
    """`["a.b=1", "c=[x,y]"]` as a nested dict, values as YAML. Raises ConfigError for
    other text.
    """
    return dotlist.parse_dotlist(arguments, USAGE)


def _move_misplaced(tree: dict) -> None:
    """Accepts train.optim_params, which a widely read guide uses, as algo.optim_params."""
    section = tree.get("train")
    if isinstance(section, dict) and "optim_params" in section:
        moved = {"algo": {"optim_params": section.pop("optim_params")}}
        merged = OmegaConf.to_container(OmegaConf.merge(tree, moved))
        tree.update(merged)
        if env.read_launch_env().rank == 0:
            print(
                f"warning: {_MISPLACED}.* is read as algo.optim_params.*, where hosts keep it",
                file=sys.stderr,
            )


def _shorten(config: Any) -> None:
    """debug=true: the host's --debug settings, for a short run."""
    with config.values_unlocked():
        config.experiment.epoch_every_n_steps = 3
        config.experiment.validation_epoch_every_n_steps = 3
        config.train.num_epochs = 2
        config.experiment.rollout.rate = 1
        config.experiment.rollout.n = 2
        config.experiment.rollout.horizon = 10
        config.train.output_dir = str(Path(tempfile.gettempdir()) / "tmp_trained_models")
