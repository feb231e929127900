"""Whether `algo.unet` of the config sizes a diffusion policy's net, and what follows from that."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from robomimic_ddp.config import tree

_LEVEL = re.compile(r"down_modules\.(\d{1,3})\.0\.blocks\.0\.block\.0\.weight$")
"""The first weight of a level of robomimic's ConditionalUnet1D."""
_OWN = [256, 512, 1024]
"""The levels that robomimic builds, whatever its config says."""
_MOST_SHOWN = 60
"""Characters of the config's list."""


def note(shapes: Iterable[tuple[str, Sequence[int]]], config: Any) -> str | None:
    """Return what to know of a net whose levels are those of `algo.unet` in the host's `config` and
    not robomimic's own, or the other way round; None for others. shapes: of the parameters, by
    name.
    """
    matches = ((_LEVEL.search(name), shape) for name, shape in shapes)
    levels = {int(match[1]): int(shape[0]) for match, shape in matches if match and shape}
    sizes = [levels[number] for number in sorted(levels)]
    named = tree.at(config, "algo.unet.down_dims")
    if not sizes or not tree.is_list(named) or not named:
        return None
    is_own, is_named = sizes == _OWN, sizes == list(named)
    if is_own == is_named:
        return None
    if is_own:
        return (
            f"the host's own sizes (down_dims {_OWN}); this host does not read algo.unet of "
            f"the config (down_dims {str(list(named))[:_MOST_SHOWN]}). With `--with unet_config`, "
            "apply, and run, make it do so"
        )
    return (
        f"sized by algo.unet of the config (down_dims {sizes}), which the unedited robomimic "
        "does not read; its checkpoints load only in hosts with the edit unet_config"
    )
