"""Scales the learning rate with the samples per step, by the rule of `ddp.lr_scaling`."""

from __future__ import annotations

import math
from collections.abc import Mapping

from robomimic_ddp.config.options import ResolvedOptions

AUTO_SQRT_FROM_PARAMETERS = 100_000_000


def rule_and_notes(resolved: ResolvedOptions, on_command_line: bool) -> tuple[str, tuple[str, ...]]:
    """Return the rule to apply, and sentences for the user.

    A learning rate given on the command line is final, unless `ddp.lr_scaling` is given there too.
    """
    rule = resolved.values.lr_scaling
    if rule == "none" or not on_command_line or resolved.sources["lr_scaling"] == "command line":
        return rule, ()
    note = f"learning rate: given on the command line, so ddp.lr_scaling={rule} is not applied"
    return "none", (note,)


def factors(samples_per_step: int, configured_batch: int) -> dict[str, float]:
    """Rule -> factor of the configured learning rate."""
    ratio = samples_per_step / configured_batch
    return {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}


def auto_rule(parameters: int, fine_tuning: bool) -> str:
    """Return what `auto` stands for, for a policy of `parameters` parameters."""
    if fine_tuning:
        return "none"
    return "sqrt" if parameters >= AUTO_SQRT_FROM_PARAMETERS else "linear"


def describe(
    before: float,
    after: float,
    rule: str,
    by_rule: Mapping[str, float],
    chosen: bool = True,
    resumes: bool = False,
) -> str:
    """One line: the learning rate before and after scaling, and with each other rule.

    `by_rule`: the result of `factors`. chosen: whether somebody has chosen the rule; resumes:
    whether the run has a saved learning rate, which it keeps.
    """
    change = f"{before:g}, as configured"
    if before != after:
        change = f"{before:g} -> {after:g} (x {after / before:g})"
    whose = "the saved one, since this run resumes; a new run would get " if resumes else ""
    if by_rule["linear"] == 1:
        return f"learning rate: {whose}{change}"
    choices = ", ".join(f"{name} {before * factor:g}" for name, factor in by_rule.items())
    differs = "" if chosen else " (the default here; robomimic-ddp launch scales by linear)"
    return (
        f"learning rate: {whose}{change}; ddp.lr_scaling={rule}{differs}; by each rule: {choices}"
    )
