"""Options that an entry point hands to the run, attached to the host's config object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_NOTES = "__robomimic_ddp_notes"


@dataclass(frozen=True)
class Notes:
    """Our options from the config file's `ddp` section and from the command line."""

    file_options: Mapping[str, Any] = field(default_factory=dict)
    command_line_options: Mapping[str, Any] = field(default_factory=dict)
    command_line_keys: tuple = ()


def attach_notes(config: Any, notes: Notes) -> None:
    """Attaches `notes` to the host's config, outside its dictionary, which files contain."""
    object.__setattr__(config, _NOTES, notes)


def notes_of(config: Any) -> Notes:
    """Return the notes of `attach_notes`, or empty ones."""
    return getattr(config, "__dict__", {}).get(_NOTES, Notes())
