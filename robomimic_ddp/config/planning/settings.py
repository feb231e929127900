"""What a run was asked to do and what follows from it, in one frozen object for all who read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from robomimic_ddp.config.options import Options, ResolvedOptions
from robomimic_ddp.config.planning import data_workers
from robomimic_ddp.config.planning.plan import RunPlan

PRESET = "preset"


@dataclass(frozen=True)
class Settings:
    """Everything that is decided before training. It is planned on each rank alone, completed when
    the ranks have met (`on_node`) and when the host has built its nets (`with_preset`).

    options: of all layers; sources: for each, "command line", "environment", "file", "default" or
    "preset"; seed: the config's; fine_tuning: whether weights are loaded first; cores: CPU cores
    for this rank, bound by the launcher or shared by the ranks of its node.
    """

    options: Options
    sources: Mapping[str, str]
    plan: RunPlan
    seed: int
    fine_tuning: bool
    cores: int

    @classmethod
    def of(
        cls, resolved: ResolvedOptions, plan: RunPlan, seed: int, fine_tuning: bool = False
    ) -> Settings:
        """Return the settings of a rank that has the plan's CPU cores to itself."""
        return cls(resolved.values, resolved.sources, plan, seed, fine_tuning, plan.cores)

    def record(self) -> dict[str, Any]:
        """Return what `ddp.json` and trackers get of them: options, sources and plan."""
        sources = dict(self.sources)
        return {"options": asdict(self.options), "sources": sources, "plan": asdict(self.plan)}

    def on_node(self, plan: RunPlan, cores: int) -> Settings:
        """These settings with the `plan` for this node and `cores` CPU cores for this rank, by
        which `ddp.workers=auto` counts.
        """
        if self.options.workers == "auto" and plan.data_workers is not None:
            plan = replace(plan, data_workers=data_workers.of_share("auto", cores))
        return replace(self, plan=plan, cores=cores)

    def with_preset(self, added: Mapping[str, Any]) -> Settings:
        """These settings with the options of a preset that were left at their default."""
        free = {name: value for name, value in added.items() if self.sources[name] == "default"}
        sources = {**self.sources, **dict.fromkeys(free, PRESET)}
        return replace(self, options=replace(self.options, **free), sources=sources)
