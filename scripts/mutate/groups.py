"""The modules that are mutated, and the tests that are run against their mutants."""

from __future__ import annotations

GROUPS = {
    "data/sampling/pass_order data/sampling/sampler data/sampling/sharded_loader"
    " data/sampling/loaders": (
        "data/test_orders_never_change data/test_sampling data/test_sampling_positions"
        " data/test_iterable data/test_loader_arguments"
    ),
    "data/sampling/replay": (
        "data/test_sampling_positions data/test_own_state_samplers data/test_replayed_loader"
    ),
    "data/sampling/nested_loaders": (
        "data/test_sampling data/test_iterable data/test_replayed_loader training/test_run"
        " training/test_several_train_loaders training/test_plan_summary"
    ),
    "distributed/gradients/fsdp distributed/gradients/fsdp_units": (
        "ranks/gradients/test_fsdp ranks/gradients/test_fsdp_settings"
    ),
    "data/sampling/worker_options": "data/test_worker_options",
    "data/language/embeddings": "data/test_embeddings",
    "data/rlds/order/pass_schedule data/rlds/order/read_plan data/rlds/order/partition"
    " data/rlds/order/pass_order"
    " data/rlds/order/shuffle_plan": (
        "data/test_orders_never_change rlds/order/test_shuffle rlds/order/test_partition"
        " rlds/order/test_pass_schedule"
    ),
    "data/rlds/order/mixture_quota": "data/test_orders_never_change rlds/order/test_mixture_quota",
    "monitoring/metrics monitoring/step_logs": (
        "monitoring/test_metrics ranks/epochs/test_validation ranks/resuming/test_resumed_run"
        " ranks/epochs/test_metrics ranks/epochs/test_step_logs"
    ),
    "training/step/accumulation": (
        "training/step/test_accumulation ranks/gradients/test_accumulation"
    ),
    "training/step/ema training/step/ema_average": "training/step/test_ema",
    "distributed/gradients/torch_arguments": "distributed/test_torch_arguments",
    "distributed/rng": "distributed/test_rng training/test_run",
    "distributed/gradients/flat_mean distributed/gradients/optimizer_ddp"
    " distributed/gradients/step_guard": (
        "distributed/test_flat_mean ranks/gradients/test_optimizer_ddp"
        " ranks/gradients/test_step_guard"
    ),
    "training/step/sync_batchnorm": "ranks/gradients/test_sync_batchnorm",
    "distributed/tree_collectives": "ranks/resuming/test_sharded_state",
    "training/step/crops": "training/step/test_crops",
    "training/step/precision": "training/step/test_precision",
    "training/step/backprop training/step/fused_optimizers": (
        "training/step/test_backprop training/step/test_fused_optimizers"
        " training/step/test_precision training/step/test_accumulation"
    ),
    "training/state/state_saver training/state/resume": (
        "training/test_resume ranks/resuming/test_state_saver ranks/resuming/test_resumed_run "
        "ranks/resuming/test_epoch_is_a_pass ranks/resuming/test_resume_refusals"
    ),
    "checkpoint/capture checkpoint/restore": (
        "ranks/resuming/test_state_model ranks/resuming/test_state_saver"
        " ranks/resuming/test_sharded_state"
    ),
    "config/planning/plan config/planning/learning_rate config/planning/parallel_mode"
    " config/planning/data_workers config/planning/settings": (
        "config/test_plan data/test_worker_options training/test_plan_summary"
        " ranks/epochs/test_unequal_machines"
    ),
    "training/data_loaders": (
        "training/test_data_loaders training/test_several_train_loaders"
        " training/step/test_shape_metadata"
    ),
    "training/step/schedule": "training/test_schedule",
    "commands/sweep/space commands/sweep/new commands/sweep/study commands/sweep/journal"
    " commands/sweep/worker": "commands/test_sweep_parts commands/test_sweep",
    "verify/data_fingerprint": "verify/test_data_fingerprint verify/test_first_step",
    "verify/tensor_checksums": "verify/test_verify ranks/gradients/test_fsdp_settings",
    "verify/comparison": "verify/test_comparison",
    "verify/rng_state verify/drawn_numbers": "verify/test_first_step",
    "verify/structure": "verify/test_structure",
    "verify/plain_numbers verify/gradient_means": (
        "verify/test_gradient_means ranks/gradients/test_proofs"
    ),
    "data/rlds/schema/rotations": "rlds/contents/test_rotations",
    "data/rlds/index/splits data/rlds/index/normalization data/rlds/index/statistics": (
        "rlds/contents/test_numbers"
    ),
    "data/rlds/schema/fields data/rlds/schema/features data/rlds/schema/spec"
    " data/rlds/schema/actions": ("rlds/contents/test_fields rlds/contents/test_schemas"),
    "data/rlds/index/prepared": "rlds/reading/test_prepared_notes",
    "data/rlds/pipeline/images data/rlds/pipeline/resize": "rlds/contents/test_pixels",
    "data/rlds/octo_statistics": "rlds/reading/test_octo_statistics",
    "data/rlds/window_table": "data/test_orders_never_change",
    "data/rlds/schema/job_config": "rlds/contents/test_schemas bad_input/test_rlds",
    "data/rlds/order/windows": "data/test_orders_never_change rlds/order/test_window_bounds",
    "commands/evaluate/checkpoints commands/evaluate/record monitoring/records/evaluation": (
        "evaluate/test_best evaluate/test_pieces evaluate/test_trackers"
    ),
    "data/rlds/loaders/base data/rlds/loaders/train data/rlds/loaders/valid"
    " data/rlds/loaders/mixture data/rlds/loaders/make data/rlds/dataset data/rlds/host_datasets"
    " data/rlds/mixture_dataset data/rlds/pipeline/engine data/rlds/pipeline/window_batches": (
        "rlds/order/test_passes rlds/order/test_positions rlds/order/test_mixtures"
        " rlds/contents/test_windows rlds/reading/test_index rlds/reading/test_ahead"
        " rlds/reading/test_damages rlds/contents/test_language rlds/order/test_shuffle_memory"
        " rlds/reading/test_index_cache"
    ),
    "data/rlds/index/build data/rlds/index/source data/rlds/index/example data/rlds/index/records"
    " data/rlds/index/cache": (
        "rlds/reading/test_index rlds/contents/test_windows rlds/reading/test_bad_data"
        " rlds/reading/test_damages rlds/reading/test_skip_corrupt rlds/reading/test_reader"
        " rlds/reading/test_examples rlds/reading/test_index_cache bad_input/test_rlds"
    ),
}
"""Modules of robomimic_ddp, and the files of tests/ that are run against their mutants. Those that
read RLDS data are last: TensorFlow is in the process from there on.
"""
LEFT_OUT = (
    "-rlds",  # TensorFlow in a rank takes seconds
    "test_a_request_in_a_long_rollout",
    "test_a_thousand_ranks_and_back_are_cheap",
    "test_a_whole_droid_pass_is_planned",
    "test_weights_beyond_the_limit_of_torch",
    "test_every_kind_of_communication",
    "test_pictures_are_resized_as_hosts_do",  # asks TensorFlow
    "test_each_rank_reads_its_share",
    "test_what_a_stopped_job_has_read",
    "test_replicas_of_shards_resume_it",
)
"""Tests that cost more than they would find here."""
