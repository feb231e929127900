"""Names that users of torch and of older guides look for among our options."""

from __future__ import annotations

PASSED_ON = {
    "kwargs": (
        *("bucket_cap_mb", "find_unused_parameters", "gradient_as_bucket_view", "static_graph"),
        *("broadcast_buffers", "forward_sync_buffers"),
    ),
    "loader": (
        *("prefetch_factor", "pin_memory", "persistent_workers", "multiprocessing_context"),
        *("pin_memory_device", "in_order"),
    ),
}
"""Option -> the names that its users look for among ours."""
REMOVED = {
    "bucket_mb": "use ddp.kwargs.bucket_cap_mb",
    "buffer_sync": "use ddp.kwargs.broadcast_buffers",
    "prefetch": "use ddp.loader.prefetch_factor",
    **dict.fromkeys(
        ("cache", "cache_gb", "fast_decode"),
        "`robomimic-ddp prepare-data` stores frames at the trained size",
    ),
    "shuffle": "train.shuffle_buffer_size is for all ranks together",
    "channels_last": "remove it; convolutions keep torch's usual memory format",
    "fsdp_reshard": "remove it; FSDP's units are always sharded again after their forward",
    "log": "remove it; hosts print their config in full",
    "powersgd_start": "use ddp.comm=powersgd:N alone; it begins after 1000 steps",
    "powersgd_rank": "use ddp.comm=powersgd:N",
    "debug_interval": "use ddp.debug=true alone; it prints every 100 steps",
}
"""Option of older guides -> what to use in its place."""
