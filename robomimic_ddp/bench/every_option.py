"""`bench step --all-options`: what is measured for every option that changes a step's speed."""

from __future__ import annotations

DOWN_DIMS = (64, 128)
CAMERAS, PIXELS = 1, 64
"""Of the net, unless the command line says otherwise; pictures, since some options are for image
encoders.
"""
LONGEST = 15.0
"""Seconds of an option's rounds: what a CPU only emulates (bf16, often) would take minutes."""
OPTIONS: tuple[dict[str, str], ...] = (
    {"preset": "safe"},
    {"preset": "max"},
    {"precision": "bf16"},
    {"precision": "fp16"},
    {"accumulate": "2"},
    {"compile": "true"},
    {"compile": "reduce-overhead"},
    {"compile": "true", "accumulate": "2"},
    {"channels_last": "true"},
    {"activation_checkpointing": "true"},
    {"comm": "fp16"},
    {"comm": "bf16"},
    {"comm": "powersgd", "powersgd_start": "2"},
    {"static_graph": "true"},
    {"static_graph": "true", "accumulate": "2"},
    {"gradient_as_bucket_view": "false"},
    {"bucket_mb": "5"},
    {"buffer_sync": "true"},
    {"find_unused_parameters": "true"},
    {"verify": "false"},
    {"deterministic": "true"},
    {"workers": "auto"},
    {"workers": "1", "persistent_workers": "true", "prefetch": "4"},
)
"""Sets of options, each beside ours with the defaults. Those that have no effect on this machine
(pinned memory without a GPU) are not among them.
"""
