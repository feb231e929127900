"""What an entry point tells the run beside the host's config, carried by the config object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_NOTES = "__robomimic_ddp_notes"


@dataclass(frozen=True)
class Notes:
    """What an entry point knows beside the host's config: the file's `ddp` section, and the command
    line's.
    """

    file_options: Mapping[str, Any] = field(default_factory=dict)
    command_line_options: Mapping[str, Any] = field(default_factory=dict)
    command_line_keys: tuple = ()


def attach_notes(config: Any, notes: Notes) -> None:
    """Keeps `notes` with the host's config, outside its dictionary: they never reach config.json or
    checkpoints.
    """
    object.__setattr__(config, _NOTES, notes)


def notes_of(config: Any) -> Notes:
    """The notes of `attach_notes`, or empty ones."""
    return getattr(config, "__dict__", {}).get(_NOTES, Notes())
