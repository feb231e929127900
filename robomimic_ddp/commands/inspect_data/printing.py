"""Prints reports as tables and remarks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.filesize import decimal

from robomimic_ddp.data.rlds.index import prepared
from robomimic_ddp.data.rlds.index.statistics import QUANTILE_STEPS
from robomimic_ddp.terminal import say, table, width

TABLES = ("splits", "cameras", "steps", "episode", "schemas", "actions")
"""Sections of a report that map names to rows, {column: cell}."""
_LISTED = 4


def show(report: dict[str, Any] | list[dict[str, Any]]) -> None:
    """Prints the report of a dataset, or those of a job's datasets."""
    if isinstance(report, list):
        for dataset in report:
            show(dataset)
        return
    say(_headline(report))
    for title in TABLES:
        _print_table(title, report.get(title))
    print()
    for line in _remarks(report):
        say(line)


def _headline(report: dict[str, Any]) -> str:
    if report["kind"] == "statistics":
        return (
            f"{report['path']}: {report['files']} files, {report['episodes']} episodes, "
            f"{report['used']} of them used with {report['steps']} steps"
        )
    length, read = report["length"], report["episodes_read"]
    sample = "" if read == report["episodes"] else f" (of {read} episodes read)"
    return (
        f"{report['path']}: {report['episodes']} episodes of {length['min']} to {length['max']} "
        f"steps, median {length['median']}{sample}"
    )


def _print_table(title: str, rows: Any) -> None:
    if not isinstance(rows, dict) or not rows:
        return
    columns = next(iter(rows.values()))
    head = [f"{column:>7}" if title == "actions" else column for column in columns]
    body = [(name, *map(_cell, row, row.values())) for name, row in rows.items()]
    print("\n" + "\n".join(table([(title, *head), *body], width())))


def _cell(column: str, value: Any) -> str:
    if column == "bytes":
        return decimal(value)
    if column == "shape":
        return " x ".join("?" if size is None else str(size) for size in value) or "1"
    if isinstance(value, dict):
        more = f" and {len(value) - _LISTED} more" if len(value) > _LISTED else ""
        return ", ".join([*value][:_LISTED]) + more or "nothing"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:7.4f}" if isinstance(value, float) else str("" if value is None else value)


def _remarks(report: dict[str, Any]) -> Iterator[str]:
    if report["kind"] == "statistics":
        yield f"quantiles: of {QUANTILE_STEPS} steps spread evenly over each episode"
    if report["kind"] != "rlds":
        yield from filter(None, [report.get("use")])
        return
    if report["prepared"]:
        yield from _prepared(report["prepared"])
    words = report["language"]
    if words["feature"]:
        yield f"instructions: {words['feature']}, {words['different']} different in what was read"
        yield from (f"    {text!r}" for text in words["examples"])
        if words["empty"]:
            yield f"    empty in {words['empty']} of the {report['episodes_read']} episodes read"
    else:
        yield "instructions: none found"
    written = report.get("written")
    if "left_out" in report:
        yield f"schema: yours, train.rlds_schema={report['schema']}"
        yield from (f"    without {key}: {why}" for key, why in report["left_out"].items())
    elif report["schema"]:
        yield f"schema: train.rlds_schema={report['schema']}"
    else:
        how = "check the drafted one" if written else "-o DIR drafts one"
        yield f"schema: none of ours fits; {how} (docs/rlds_schemas.md)"
    if not written:
        yield "With -o DIR: a contact sheet of frames, and a config to train with."
        return
    yield "written: " + ", ".join(written)
    if "train" in report:
        yield f"train on N GPUs: `{report['train']}`"
    else:
        yield f"next: {report['next']}"


def _prepared(notes: dict[str, Any]) -> Iterator[str]:
    yield f"prepared: by {notes['by']} from {notes['folder']} ({notes['fingerprint']})"
    yield f"    {prepared.quality(notes)}"
    if notes["dropped"]:
        yield f"    dropped: {', '.join(notes['dropped'])}"
    lost = sum(len(one) for split in notes["left_out"].values() for one in split.values())
    if lost:
        yield f"    {lost} damaged episodes of the source are left out"
