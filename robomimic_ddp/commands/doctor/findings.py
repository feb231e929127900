"""A finding of a check, and what checks examine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True)
class Finding:
    """One line of the report. check: its name in the table of docs/troubleshooting.md, which
    `examine` sets; remedy: what to do, empty where all is well.
    """

    check: str
    level: str
    message: str
    remedy: str = ""


ok, warn, fail = (partial(Finding, "", level) for level in (OK, WARN, FAIL))


def judge(is_fine: bool, message: str, remedy: str) -> Finding:
    """Return an OK finding if it `is_fine`, else a warning with its remedy."""
    return ok(message) if is_fine else warn(message, remedy)


@dataclass(frozen=True)
class Context:
    """The environment's variables, and what `probe.probe` has returned for each package. ranks: of
    `--ranks`, or None.
    """

    variables: Mapping[str, str]
    probed: Mapping[str, Mapping[str, Any]]
    ranks: int | None = None

    @property
    def torch(self) -> Mapping[str, Any]:
        return self.probed["torch"]

    @property
    def gpus(self) -> list[Mapping[str, Any]]:
        """The GPUs that torch sees."""
        return list(self.torch.get("gpus", ()))
