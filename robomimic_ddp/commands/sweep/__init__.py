"""`robomimic-ddp sweep`: trains one config with many values, and compares the results."""

METRICS = {
    "rollout/Success_Rate": ("maximize", "experiment.rollout.enabled"),
    "rollout/Return": ("maximize", "experiment.rollout.enabled"),
    "valid/Loss": ("minimize", "experiment.validate"),
    "train/Loss": ("minimize", ""),
}
"""What trials are compared by -> the better direction, and the key of the config that is on."""


def kind(metric: str) -> str:
    """Return the one of METRICS that this metric is like: in training and validation, a loss of any
    name, such as IQL's valid/actor/loss, is like Loss.
    """
    phase, _, key = metric.partition("/")
    return f"{phase}/Loss" if key.lower().endswith("loss") else metric
