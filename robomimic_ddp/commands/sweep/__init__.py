"""`robomimic-ddp sweep`: trains one config with many values, and compares the results."""

METRICS = {
    "rollout/Success_Rate": ("maximize", "experiment.rollout.enabled"),
    "rollout/Return": ("maximize", "experiment.rollout.enabled"),
    "valid/Loss": ("minimize", "experiment.validate"),
    "train/Loss": ("minimize", ""),
}
"""What trials are compared by -> the better direction, and the key of the config that is on."""
