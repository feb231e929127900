"""The entry `robomimic.scripts.train_rlds`, in hosts that have none."""

from __future__ import annotations

from robomimic_ddp.patches.outcomes import Fixer

TEXT = '''"""
Train a policy from a config json and options of the form key=value, which win over the json.

    torchrun --nproc_per_node=4 -m robomimic.scripts.train_rlds load_from=cfg.json key=value
"""
from robomimic_ddp.train_rlds import main


if __name__ == "__main__":
    main()
'''

FIXER = Fixer(
    "entry",
    ("scripts/train_rlds.py",),
    lambda source, module: (),
    "start training with `torchrun -m robomimic_ddp.train_rlds` in place of this script",
    adds=TEXT,
)
