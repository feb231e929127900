"""The table of docs/options.md, generated so that it cannot go stale."""

from __future__ import annotations

from collections.abc import Iterator

from robomimic_ddp.config.options import DEFAULTS, FIELDS, KINDS


def markdown_table() -> str:
    """Return a row for each option."""
    return "\n".join(["| option | default | values | meaning |", "|---|---|---|---|", *_rows()])


def _rows() -> Iterator[str]:
    for name, field in FIELDS.items():
        default, also = DEFAULTS[name], (field.metadata["also"] or ())[:1]
        values = ", ".join((*(f"`{choice}`" for choice in field.metadata["choices"]), *also))
        values = values or KINDS[type(default)].replace(" | ", ", ")
        shown = str(default).lower() if isinstance(default, bool) else default or "none"
        yield f"| `{name}` | `{shown}` | {values} | {field.metadata['help']} |"
