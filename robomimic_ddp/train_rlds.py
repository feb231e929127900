"""The entry with a dot-list: `python -m robomimic.scripts.train_rlds load_from=cfg.json key=value
...`.

Command-line values override `load_from`. Our options are `ddp.<name>=value`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from typing import Any

from robomimic_ddp.config import early_failure, env, launch_env
from robomimic_ddp.config.host import early_checks
from robomimic_ddp.config.host.host_config import USAGE
from robomimic_ddp.data.rlds.tf_import import keep_triton_first
from robomimic_ddp.errors import ConfigError
from robomimic_ddp.terminal import print_clean


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains as the dot-list says (default: `sys.argv`). Mistakes in it are shown before torch and
    the host's code are imported.
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if any(argument in ("-h", "--help") for argument in arguments):
        print_clean(f"{__doc__}\n{USAGE}")
        return
    env.defer_tensorflow()
    with early_failure.shown():
        config = early_checks.dot_list_config(arguments)
    from robomimic_ddp.distributed.entry_point import entry_point

    entry_point(train)(config)


def train(config: Any) -> None:
    """Train with a host's locked config. Raises ConfigError if the host is not patched."""
    keep_triton_first()  # train.py of DROID's hosts imports TensorFlow before torchvision
    import robomimic.utils.torch_utils as TorchUtils
    from robomimic.scripts.train import train

    if not getattr(train, "is_distributed", False):
        raise ConfigError(
            f"the robomimic in use ({inspect.getfile(inspect.unwrap(train))}) is not patched, so "
            "every rank would train a separate model. Run `robomimic-ddp apply` on it first."
        )
    device = TorchUtils.get_torch_device(try_to_use_cuda=config.train.cuda)
    train(config, device=device)
    if launch_env.read_launch_env().rank == 0:
        print_clean("finished run successfully!")


if __name__ == "__main__":
    main()
