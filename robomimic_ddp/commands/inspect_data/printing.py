"""Prints the report as tables and remarks."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from robomimic_ddp.data.rlds.index import prepared
from robomimic_ddp.terminal import say

_LISTED = 4
_WIDE = 1000


def show(report: dict[str, Any]) -> None:
    """Prints the report of an RLDS or HDF5 dataset."""
    say(_headline(report))
    for title, columns, rows in _tables(report):
        if rows:
            _print_table(title, columns, rows)
    for line in _remarks(report):
        say(line)


def _headline(report: dict[str, Any]) -> str:
    length = report["length"]
    read = report["episodes_read"]
    of = "" if read == report["episodes"] else f" (of {read} episodes read)"
    return (
        f"{report['path']}: {report['episodes']} episodes of {length['min']} to {length['max']} "
        f"steps, median {length['median']}{of}"
    )


def _tables(report: dict[str, Any]) -> Iterator[tuple[str, Sequence[str], list[Sequence[str]]]]:
    splits = report.get("splits", {})
    """(title, columns, rows)."""
    yield (
        "splits",
        ("split", "episodes", "files", "size"),
        [
            (name, str(one["episodes"]), str(one["files"]), size_text(one["bytes"]))
            for name, one in splits.items()
        ],
    )
    pictures = report.get("cameras", {})
    yield (
        "cameras",
        ("feature", "stored size", "encoding"),
        [
            (name, f"{one['height']} x {one['width']}", str(one["encoding"] or ""))
            for name, one in pictures.items()
        ],
    )
    for section in ("steps", "episode"):
        yield (
            f"features of {'a step' if section == 'steps' else 'an episode'}",
            ("feature", "kind", "shape", "dtype"),
            [
                (name, one["kind"], _shape(one["shape"]), one["dtype"])
                for name, one in report.get(section, {}).items()
                if name not in pictures
            ],
        )
    yield (
        "schemas",
        ("schema", "fits", "lacks"),
        [
            (name, "yes" if fit["fits"] else "no", _few(list(fit["missing"])) or "nothing")
            for name, fit in report.get("schemas", {}).items()
        ],
    )


def _remarks(report: dict[str, Any]) -> Iterator[str]:
    if "use" in report:
        yield report["use"]
        return
    if "prepared" in report:
        yield from _prepared(report["prepared"])
    words = report["language"]
    if words["feature"]:
        yield f"instructions: {words['feature']}, {words['different']} different in what was read"
        yield from (f"    {text!r}" for text in words["examples"])
        if words["empty"]:
            yield f"    empty in {words['empty']} of the {report['episodes_read']} episodes read"
    else:
        yield "instructions: none found"
    if "left_out" in report:
        yield f"schema: yours, train.rlds_schema={report['schema']}"
        yield from (f"    without {key}: {why}" for key, why in report["left_out"].items())
    elif report["schema"]:
        yield f"schema: train.rlds_schema={report['schema']}"
    elif "written" in report:
        yield "schema: none of ours fits; check the drafted one (docs/rlds_schemas.md)"
    else:
        yield "schema: none of ours fits; -o DIR drafts one (docs/rlds_schemas.md)"
    if "written" in report:
        yield "written: " + ", ".join(report["written"])
        if "train" in report:
            yield f"train on N GPUs: `{report['train']}`"
        if "next" in report:
            yield f"next: {report['next']}"
    else:
        yield "With -o DIR: a contact sheet of frames, and a config to train with."


def _prepared(notes: dict[str, Any]) -> Iterator[str]:
    yield f"prepared: by {notes['by']} from {notes['folder']} ({notes['fingerprint']})"
    yield f"    {prepared.quality(notes)}"
    if notes["dropped"]:
        yield f"    dropped: {', '.join(notes['dropped'])}"
    lost = sum(len(one) for split in notes["left_out"].values() for one in split.values())
    if lost:
        yield f"    {lost} damaged episodes of the source are left out"


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def size_text(count: float) -> str:
    """Bytes with a unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _shape(shape: Sequence[Any]) -> str:
    return " x ".join("?" if size is None else str(size) for size in shape) or "1"


def _print_table(title: str, columns: Sequence[str], rows: list[Sequence[str]]) -> None:
    """Without a terminal: no borders, no wrapping."""
    terminal = sys.stdout.isatty()
    look = {} if terminal else {"box": None, "pad_edge": False}
    table = Table(*columns, **look)
    for row in rows:
        table.add_row(*map(Text, row))
    print(f"\n{title}")
    Console(width=None if terminal else _WIDE).print(table)
