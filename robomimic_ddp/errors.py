"""Every error that a user can cause, and the exit codes of the command line.

A message states what was found, what was expected, why it matters and what to do.
"""

from __future__ import annotations

EXIT_DONE = 0
"""Done, or nothing to do."""
EXIT_REFUSED = 1
"""A required seam could not be handled, or a check failed; nothing was written."""
EXIT_USAGE = 2
"""The command line itself is wrong."""
EXIT_STOPPED = 75
"""Training stopped on request and can go on (EX_TEMPFAIL of sysexits.h)."""


class RobomimicDDPError(Exception):
    """Base of all errors meant for users: printed as one message, without a traceback, by our entry
    points.

    everywhere: the same error is raised on every rank, so the main rank alone prints it.
    """

    everywhere = False

    def on_all_ranks(self) -> RobomimicDDPError:
        """Itself, for `raise`: every rank raises this one in this place."""
        self.everywhere = True
        return self


class LaunchError(RobomimicDDPError):
    """The environment variables of the launcher contradict each other or the machine."""


class LateRankError(RobomimicDDPError):
    """A collective's time was up before all ranks had come to it."""


class OptionError(RobomimicDDPError):
    """An unknown `ddp.*` option, or a value that it does not take."""

    everywhere = True


class PlanError(RobomimicDDPError):
    """Mode, batch, learning rate and ranks do not fit together."""

    everywhere = True


class ConfigError(RobomimicDDPError):
    """The host's configuration holds an unknown key or an impossible value."""

    everywhere = True


class DataError(RobomimicDDPError):
    """A dataset is missing, damaged, or too small for the ranks."""


class LossError(RobomimicDDPError):
    """The loss is NaN or infinite: the training has diverged."""


class WrapError(RobomimicDDPError):
    """A net is used in a way that would stop it from being synchronised."""


class VerifyError(RobomimicDDPError):
    """Ranks disagree where they must be equal, or agree where they must differ."""

    everywhere = True


class CheckpointError(RobomimicDDPError):
    """A checkpoint is missing, damaged, or made for another net."""


class WriteError(RobomimicDDPError, OSError):
    """A file that must be written could not be: a full disk, a folder without rights. Still an
    OSError, as hosts may expect of a write.
    """


class PatchError(RobomimicDDPError):
    """A host's source text could not be edited, or lacks edits of ours."""


class ApiVersionError(PatchError, SystemExit):
    """A host was patched for another version than the installed one.

    Raised while the host's modules are imported, where nothing of ours could catch it: as a
    SystemExit, Python prints the message alone and ends with 1. `quiet`: another rank prints it.
    """

    def __init__(self, message: str, quiet: bool = False) -> None:
        super().__init__(message)
        self.code = EXIT_REFUSED if quiet else f"error: {message}"


class UsageError(RobomimicDDPError):
    """The command line names a path or a fixer that is not there (exit code 2)."""


class UnpatchedScript(SystemExit):
    """A train script that lacks our edits runs on several ranks. Such scripts catch every
    Exception, print it and exit 0, so this is none: Python prints the message and ends with 1.
    `quiet`: another rank prints it.
    """

    def __init__(self, message: str, quiet: bool = False) -> None:
        super().__init__(EXIT_REFUSED if quiet else f"error: {message}")


class Stopped(SystemExit):
    """Training ends here on request, alike on every rank; its state is saved. No failure, so hosts'
    `except Exception` must not see it.
    """

    def __init__(self) -> None:
        super().__init__(EXIT_STOPPED)
