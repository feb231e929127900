"""Every error that a user can cause, and the exit codes of the command line.

A message states what was found, what was expected, why it matters and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from robomimic_ddp import API_VERSION, __version__

EXIT_DONE = 0
"""Done, or nothing to do."""
EXIT_REFUSED = 1
"""A required seam could not be handled, or a check failed; nothing was written."""
EXIT_USAGE = 2
"""The command line itself is wrong."""
EXIT_STOPPED = 75
"""Training stopped on request and can be resumed (EX_TEMPFAIL of sysexits.h)."""


def did_you_mean(word: Any, known: Iterable[str], prefix: str = "", cutoff: float = 0.6) -> str:
    """Return " Did you mean NAME?" for the closest of the `known` names; "" if none is close.
    cutoff: the share of letters that must be alike, after difflib.
    """
    close = difflib.get_close_matches(str(word), list(known), n=1, cutoff=cutoff)
    return f" Did you mean {prefix}{close[0]}?" if close else ""


class RobomimicDDPError(Exception):
    """Base of errors for users: our entry points print one message, without a traceback.

    everywhere: every rank raises the same error, so only the main rank prints it.
    """

    everywhere = False

    def on_all_ranks(self) -> RobomimicDDPError:
        """Itself, for `raise` of the same error on every rank."""
        self.everywhere = True
        return self


class LaunchError(RobomimicDDPError):
    """The launcher's environment variables contradict each other or the machine."""


class LateRankError(RobomimicDDPError):
    """A collective timed out before all ranks had reached it."""


class OptionError(RobomimicDDPError):
    """An unknown `ddp.*` option, or an invalid value."""

    everywhere = True


class PlanError(RobomimicDDPError):
    """Mode, batch, learning rate and ranks contradict each other."""

    everywhere = True


class ConfigError(RobomimicDDPError):
    """The host's config has an unknown key or an impossible value."""

    everywhere = True


class DataError(RobomimicDDPError):
    """A dataset is missing, damaged, or too small for the ranks."""


class LossError(RobomimicDDPError):
    """The loss is NaN or infinite."""


class WrapError(RobomimicDDPError):
    """A net is used in a way that would stop it from being synchronised."""


class VerifyError(RobomimicDDPError):
    """Ranks disagree where they must be equal, or agree where they must differ."""

    everywhere = True


class CheckpointError(RobomimicDDPError):
    """A checkpoint is missing, damaged, or made for another net."""


class WriteError(RobomimicDDPError, OSError):
    """A file could not be written: a full disk, a folder without rights. Also an OSError, as hosts
    may expect of a write.
    """


class PatchError(RobomimicDDPError):
    """A host's source text could not be edited, or lacks edits of ours."""


class ApiVersionError(PatchError, SystemExit):
    """A host was patched for another version than the installed one.

    Raised while the host's modules are imported, where we cannot catch it: for a SystemExit, Python
    prints the message alone and exits with 1. quiet: another rank prints it.
    """

    def __init__(self, message: str, quiet: bool = False) -> None:
        super().__init__(message)
        self.code = EXIT_REFUSED if quiet else f"error: {message}"


def other_api_version(versions: Iterable[int], quiet: bool = False) -> ApiVersionError | None:
    """Return the error of a host patched for another API version; None if `versions` are ours."""
    others = sorted(set(versions) - {API_VERSION})
    if not others:
        return None
    return ApiVersionError(
        f"this host was patched for API version {others[0]} of robomimic-ddp, and {API_VERSION} is "
        f"installed (robomimic-ddp {__version__}). Its edited lines would not mean what they say. "
        "Install the version that patched it, or run `robomimic-ddp revert` and `robomimic-ddp "
        "apply` on the host.",
        quiet,
    )


class UsageError(RobomimicDDPError):
    """The command line names a path or an edit that is not there (exit code 2)."""


class UnpatchedScript(SystemExit):
    """A train script without our edits runs on several ranks. Such scripts catch every Exception,
    print it and exit with 0, so this is a SystemExit. quiet: another rank prints it.
    """

    def __init__(self, message: str, quiet: bool = False) -> None:
        super().__init__(EXIT_REFUSED if quiet else f"error: {message}")


class Stopped(SystemExit):
    """Training ends here on request, on every rank; its state is saved. Hosts' `except Exception`
    must not catch it.
    """

    def __init__(self) -> None:
        super().__init__(EXIT_STOPPED)
