"""The page of every option, read from the code, so that it cannot go stale."""

from __future__ import annotations

from collections.abc import Iterator

from robomimic_ddp.config.options import DEFAULTS, FIELDS, KINDS

HEAD = """# Options

Set each on the command line (`ddp.lr_scaling=sqrt`), in the environment
(`ROBOMIMIC_DDP_LR_SCALING=sqrt`), or in the config file (`"ddp": {"lr_scaling": "sqrt"}`); the
first found wins, else the default.

| option | default | values | meaning |
|---|---|---|---|
"""


def page() -> str:
    """Return docs/options.md: a row for each option."""
    return HEAD + "\n".join(_rows()) + "\n"


def _rows() -> Iterator[str]:
    for name, field in FIELDS.items():
        default, also = DEFAULTS[name], (field.metadata["also"] or ())[:1]
        values = ", ".join((*(f"`{choice}`" for choice in field.metadata["choices"]), *also))
        values = values or KINDS[type(default)].replace(" | ", ", ")
        shown = str(default).lower() if isinstance(default, bool) else default or "none"
        yield f"| `{name}` | `{shown}` | {values} | {field.metadata['help']} |"
