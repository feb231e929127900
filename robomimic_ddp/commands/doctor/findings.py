"""Findings of checks, and their context."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from robomimic_ddp.config import env, memory, options, tree

OK, WARN, FAIL = "ok", "warn", "fail"
_PATIENCE_SECONDS = 120
DEFAULT_PARAMETERS = "67M"
"""robomimic's diffusion policy."""


@dataclass(frozen=True)
class Finding:
    """One line of the report. `check`: the name that docs/troubleshooting.md lists it under."""

    check: str
    level: str
    found: str
    remedy: str = ""


def judged(check: str, is_fine: bool, found: str, remedy: str, level: str = WARN) -> Finding:
    """OK where it `is_fine`, else of `level`, with its remedy."""
    return Finding(check, OK, found) if is_fine else Finding(check, level, found, remedy)


@dataclass(frozen=True)
class Context:
    """What the checks examine. torch: the result of `probe_torch`, or {"error": ...} if the import
    fails; config: the host's JSON config and its path, or None; parameters: of the policy.
    """

    variables: Mapping[str, str]
    torch: Mapping[str, Any]
    ranks: int | None = None
    config_path: str | None = None
    config: Mapping[str, Any] | None = field(default=None, repr=False)
    parameters: int = memory.parameters_of(DEFAULT_PARAMETERS)

    def section(self, name: str) -> Mapping[str, Any]:
        """The section `name` of the config; empty if it is none, which check_config reports."""
        found = tree.at(self.config, name)
        return found if isinstance(found, Mapping) else {}

    def options(self) -> options.Options:
        """The run's options from config and environment. Raises OptionError."""
        texts = env.option_texts(self.variables)
        return options.resolve(environment=texts, file=self.section("ddp")).values

    @property
    def world(self) -> int:
        """The ranks that a job would have here."""
        return self.ranks or len(self.gpus) or 1

    @property
    def gpus(self) -> list[Mapping[str, Any]]:
        """The GPUs that torch sees."""
        return list(self.torch.get("gpus", ()))


def output_of(*command: str) -> tuple[int, str]:
    """(exit code, output) of a command; (-1, reason) if it could not run."""
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return -1, str(error)
    return done.returncode, done.stdout


def probe_torch() -> dict[str, Any]:
    """The probe of torch, with "torchvision": why that cannot be used, or None."""
    with ThreadPoolExecutor(2) as both:
        torch, vision = both.map(probe, ("torch", "torchvision"))
    return {**torch, "torchvision": vision.get("error")}


def probe(package: str) -> dict[str, Any]:
    """The result of `probes` for `package`, from another process, since a broken build may end it
    by a signal. {"error": why} if it cannot be imported.
    """
    code, text = output_of(sys.executable, "-m", "robomimic_ddp.commands.doctor.probes", package)
    lines = text.strip().splitlines() or [f"exit code {code}, no output"]
    try:
        return dict(json.loads(lines[-1]))
    except (TypeError, ValueError):
        return {"error": f"{lines[-1]} (exit code {code})"}
