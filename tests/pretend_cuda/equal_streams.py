"""Seeds one generator alike on two ranks, each in turn, prints which one `verify` names, and has
the ledger note a draw of the CPU's and the GPU's.
"""

from __future__ import annotations

import ctypes
import os
import random

import numpy as np
import torch

from robomimic_ddp.distributed import group, rng
from robomimic_ddp.errors import VerifyError
from robomimic_ddp.verify.comparison import Evidence
from robomimic_ddp.verify.rng_state import Streams
from tests.pretend_cuda.ledger import Ledger

SEEDED = {
    "the CPU": lambda: torch.default_generator.manual_seed(5),
    "the GPU": lambda: torch.cuda.manual_seed(5),
    "numpy": lambda: np.random.seed(5),
    "Python": lambda: random.seed(5),
    "none": lambda: None,
}


def main() -> None:
    """Collective: of two ranks that both use the first of two GPUs."""
    torch.cuda.set_device(0)
    mark = ctypes.CDLL(None).pretend_mark
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])  # as tests/pretend_cuda/job.py counts
    with group.process_group("gloo", 60.0, attempt):
        for what, seed in SEEDED.items():
            rng.seed(7, group.rank())
            seed()
            mark(b"training")
            with Ledger():
                torch.randn(3)
                torch.rand(3, device="cuda")
            try:
                Evidence("here", different=Streams.now().different()).require()
                message = "nothing"
            except VerifyError as error:
                message = str(error)
            if group.is_main():
                print(f"seeded {what}: {message}", flush=True)


if __name__ == "__main__":
    main()
