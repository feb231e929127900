"""Every algorithm of the host in the variants that differ in how they draw, step or average."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.configs import SMALL, merged

BATCH = 11
"""Samples of a rank. No other dimension in these nets is a multiple of it: see
tests/parity/reference.py.
"""


class Algorithm(NamedTuple):
    """`variant` of tests/configs.py with `changes` on top. `ranks`: numbers of ranks it is trained
    on. `second_epoch`: see `training.Job`. `ddp`: options of ours.
    """

    variant: str
    changes: dict[str, Any] = {}
    ranks: tuple[int, ...] = (2,)
    second_epoch: int | None = None
    ddp: dict[str, Any] = {}


def _prior(**settings: Any) -> dict[str, Any]:
    return {"algo": {"vae": {"prior": settings}}}


def _bcq(**settings: Any) -> dict[str, Any]:
    return {"algo": settings}


_GMM = {"learn": True, "use_gmm": True, "gmm_num_modes": 3, "gmm_learn_weights": True}
_CATEGORICAL = {"use_categorical": True, "categorical_dim": 3}
_RESNET = {
    "observation": {
        "encoder": {
            "rgb": {
                "core_kwargs": {
                    "backbone_class": "ResNet18Conv",
                    "backbone_kwargs": {"pretrained": False, "input_coord_conv": False},
                    "pool_class": None,  # of 32x32 pixels one is left
                }
            }
        }
    }
}
_BOTH = (2, 3)

ALGORITHMS = {
    "BC": Algorithm("bc"),
    "BC Gaussian": Algorithm("bc_gaussian"),
    "BC GMM": Algorithm("bc_gmm", ranks=_BOTH),
    "BC RNN": Algorithm("bc_rnn"),
    "BC RNN-GMM": Algorithm("bc_rnn_gmm", ranks=_BOTH),
    "BC Transformer": Algorithm("bc_transformer"),
    "BC Transformer-GMM": Algorithm("bc_transformer_gmm", ranks=_BOTH),
    "BC VAE": Algorithm("bc_vae"),
    "BC VAE, prior of the observation": Algorithm(
        "bc_vae", _prior(learn=True, is_conditioned=True), ranks=_BOTH
    ),
    "BC VAE, GMM prior of the observation": Algorithm(
        "bc_vae", _prior(**_GMM, is_conditioned=True), ranks=_BOTH
    ),
    "BC VAE, learned categorical prior": Algorithm(
        "bc_vae", _prior(**_CATEGORICAL, learn=True, is_conditioned=True), ranks=_BOTH
    ),
    "BC ResNet18": Algorithm("bc_images", _RESNET, ddp={"sync_batchnorm": True}),
    "BCQ": Algorithm("bcq", ranks=_BOTH),
    "BCQ, no actor": Algorithm("bcq", _bcq(actor={"enabled": False})),
    "BCQ, distributional critic": Algorithm(
        "bcq", _bcq(critic={"value_bounds": [-1.0, 1.0], "distributional": {"enabled": True}})
    ),
    "BCQ, GMM sampler": Algorithm(
        "bcq",
        _bcq(
            action_sampler={
                "actor_layer_dims": SMALL,
                "vae": {"enabled": False},
                "gmm": {"enabled": True},
            }
        ),
    ),
    "BCQ, encoder frozen at the second epoch": Algorithm(
        "bcq", _bcq(action_sampler={"freeze_encoder_epoch": 2}), ranks=_BOTH, second_epoch=3
    ),
    "CQL": Algorithm("cql", ranks=_BOTH),
    "CQL, weights not tuned": Algorithm(
        "cql",
        {
            "algo": {
                "actor": {"target_entropy": None},
                "critic": {"target_q_gap": None, "num_action_samples": 3},
            }
        },
    ),
    "IQL": Algorithm("iql", ranks=_BOTH),
    "IQL, GMM actor": Algorithm("iql", {"algo": {"actor": {"net": {"type": "gmm"}}}}),
    "TD3-BC": Algorithm("td3_bc", ranks=_BOTH),
    "GL": Algorithm("gl"),
    "GL VAE": Algorithm("gl_vae", ranks=_BOTH),
    "HBC": Algorithm("hbc", ranks=_BOTH),
    "IRIS": Algorithm("iris", ranks=_BOTH),
}


def changes_of(one: Algorithm) -> dict[str, Any]:
    """What the configuration of its variant gets on top."""
    ours = {"train": {"batch_size": BATCH}, **({"ddp": one.ddp} if one.ddp else {})}
    return merged(one.changes, ours)
