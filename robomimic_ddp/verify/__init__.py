"""Verifies at run time that ranks are equal where they must be, and differ where they must.

Equality is bitwise: every tensor is reduced to two 64-bit sums on its device, and only their digest
is sent. Differences are of whole random states and index streams, never of single values, which may
be equal by chance; the states of differently seeded ranks differ by construction
(`rng.seed_streams`).
"""

from __future__ import annotations

from robomimic_ddp.verify.code_versions import commit, software
from robomimic_ddp.verify.comparison import require_equal
from robomimic_ddp.verify.structure import (
    plain_tensor_items,
    require_same_structure,
    require_same_weights,
    state_sums,
)
from robomimic_ddp.verify.tensor_checksums import checksum, checksums, digest
from robomimic_ddp.verify.verifier import NOT_PROVEN, Verifier
