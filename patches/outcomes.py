"""What a fixer is, the four answers it can give about a file, and all that is known of a host."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Union

from robomimic_ddp.patches.host.already_distributed import Refusal
from robomimic_ddp.patches.host.hosts import Host

if TYPE_CHECKING:
    import libcst as cst

    from robomimic_ddp.patches.syntax.source import Edit, Source


TRAINING = "def train"
"""What fixers call the training function of a file, see `Fixer`."""


@dataclass(frozen=True)
class Applied:
    """The construct was found; `edits` retrofit it."""

    edits: tuple[Edit, ...]
    lines: tuple[int, ...] = ()


@dataclass(frozen=True)
class AlreadyApplied:
    """Every occurrence of the construct has been retrofitted before."""

    lines: tuple[int, ...] = ()


@dataclass(frozen=True)
class NotPresent:
    """The file lacks the construct, and need not."""

    reason: str
    lines: tuple[int, ...] = ()


@dataclass(frozen=True)
class Unrecognised:
    """The construct is there, or ought to be, in a form that is not safe to edit. If it `blocks`,
    nothing may be written to the host; else the form is named and left, and the rest is patched.
    `by_hand`: what to write instead; "" where the file itself is at fault.
    """

    where: int
    why: str
    by_hand: str = ""
    blocks: bool = True

    @property
    def lines(self) -> tuple[int, ...]:
        """The 1-based line in one tuple, as the other outcomes have it."""
        return (self.where,) if self.where else ()


Outcome = Applied | AlreadyApplied | NotPresent | Unrecognised
Found = Union["Edit", "cst.CSTNode", NotPresent, Unrecognised]  # noqa: UP007 (forward references)
"""An edit to make, a node that was retrofitted before, or the answer, which ends the search."""


@dataclass(frozen=True)
class Fixer:
    """A construct of the host, and how it is retrofitted.

    `seam` is the part of the training that it belongs to; several fixers may serve one seam (nets
    that are wrapped in DataParallel in one family, and bare in another). If `required`, at least
    one fixer of the seam must find its construct somewhere in the host. `within`: the function or
    class at top level that contains it ("def train"), or "" for the whole file. `find` is given the
    file and that part of it; `done` are the functions of our api whose calls there show that it was
    retrofitted before, and `missing` says that there is none.

    A file is parsed only if it matches one of the `files` patterns (relative to the package folder)
    and its bytes contain each of `words` (default: those of `within`), where "a|b" is either. They
    must contain them after the edit as well, or the construct would not be found again. In files of
    TRAIN_SCRIPTS, "def train" stands for the file's training function, whatever its name. `note` is
    what users of the edit must know, shown with its outcome; `absent` is the reason in words where
    no file matches. `adds`: the text of a file (the one of `files`) that hosts may lack.
    """

    seam: str
    files: tuple[str, ...]
    find: Callable[[Source, Any], Iterable[Found]]
    by_hand: str
    within: str = ""
    words: tuple[str, ...] = ()
    done: tuple[str, ...] = ()
    missing: str = ""
    required: bool = False
    default: bool = True
    name: str = ""
    note: str = ""
    absent: str = ""
    adds: str = ""

    @property
    def marks(self) -> tuple[str, ...]:
        """The words that a file must contain."""
        return self.words or (f"{self.within}(" if self.within[:3] == "def" else self.within,)

    def may_apply_to(self, data: bytes, training: str = "train") -> bool:
        """Return whether a file with these bytes is worth parsing. training: the name of the file's
        training function.
        """
        marks = (word.replace(TRAINING, f"def {training}") for word in self.marks)
        return all(
            any(alternative.encode() in data for alternative in word.split("|")) for word in marks
        )


@dataclass(frozen=True)
class Finding:
    """What one fixer answered about one file (`path` relative to the package)."""

    fixer: Fixer
    path: str
    outcome: Outcome


@dataclass(frozen=True)
class FilePatch:
    """A file's bytes before (None: no such file) and after; `path` relative to the package."""

    path: str
    before: bytes | None
    after: bytes


@dataclass(frozen=True)
class Examination:
    """All that is known of a host before anything is written. `problems` forbid writing. `base`:
    the same of the installed robomimic that the host's package is built on.
    """

    host: Host
    findings: tuple[Finding, ...]
    patches: tuple[FilePatch, ...] = ()
    refusal: Refusal | None = None
    problems: tuple[Finding, ...] = ()
    base: Examination | None = None

    @property
    def blocked(self) -> bool:
        """Whether the host cannot be retrofitted as it is."""
        is_base_blocked = self.base is not None and self.base.blocked
        return self.refusal is not None or bool(self.problems) or is_base_blocked

    @property
    def state(self) -> str:
        """One of "already distributed", "blocked", "patched", "partly patched" or "not patched"."""
        if self.blocked:
            return "already distributed" if self.refusal else "blocked"
        kinds = {type(finding.outcome) for finding in self.findings}
        if not self.patches and AlreadyApplied in kinds:
            return "patched"
        return "partly patched" if AlreadyApplied in kinds else "not patched"
