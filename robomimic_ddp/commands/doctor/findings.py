"""The findings of the checks, and the context that they examine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True)
class Finding:
    """A line of the report. check: its name in the table of docs/troubleshooting.md, set by
    `examine`; remedy: what to do, empty if there is no fault.
    """

    check: str
    level: str
    message: str
    remedy: str = ""


ok, warn, fail = (partial(Finding, "", level) for level in (OK, WARN, FAIL))


def judge(is_fine: bool, message: str, remedy: str) -> Finding:
    """Return an OK finding if `is_fine`, otherwise a warning with its remedy."""
    return ok(message) if is_fine else warn(message, remedy)


@dataclass(frozen=True)
class Context:
    """The environment variables, the result of `probe.probe` for each package, and the number of
    `--ranks`, if given.
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
