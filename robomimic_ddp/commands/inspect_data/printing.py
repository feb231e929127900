"""Prints reports as tables and remarks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.filesize import decimal

from robomimic_ddp.data.rlds.index import prepared
from robomimic_ddp.data.rlds.index.statistics import QUANTILE_STEPS
from robomimic_ddp.terminal import print_clean, say, table, width

TABLES = ("cameras", "steps", "schemas", "actions")
"""Sections of a report that map names to rows, {column: cell}."""
_LISTED = 4


def show(report: dict[str, Any] | list[dict[str, Any]]) -> None:
    """Print the report of a dataset, or those of a job's datasets."""
    if isinstance(report, list):
        for dataset in report:
            show(dataset)
        return
    say(f"{report['path']}: {_summary(report)}")
    for title in TABLES:
        rows = report.get(title)
        if rows and isinstance(rows, dict):  # of statistics "steps" is a number
            _print_table(title, rows)
    print_clean()
    for line in _remarks(report):
        say(line)


def _summary(report: dict[str, Any]) -> str:
    if report["kind"] == "statistics":
        return (
            f"{report['files']} files, {report['episodes']} episodes, {report['used']} of them "
            f"used with {report['steps']} steps"
        )
    length = report["length"]
    sample = "" if length["read"] == report["episodes"] else f" (of {length['read']} episodes read)"
    return (
        f"{report['episodes']} episodes of {length['min']} to {length['max']} steps, median "
        f"{length['median']}{sample}"
    )


def _print_table(title: str, rows: dict[str, dict[str, Any]]) -> None:
    columns = next(iter(rows.values()))
    head = [f"{column:>7}" if title == "actions" else column for column in columns]
    body = [(name, *map(_cell, row, row.values())) for name, row in rows.items()]
    print_clean("\n" + "\n".join(table([(title, *head), *body], width())))


def _cell(column: str, value: Any) -> str:
    if column == "shape":
        return " x ".join("?" if size is None else str(size) for size in value) or "1"
    if column == "missing":
        more = f" and {len(value) - _LISTED} more" if len(value) > _LISTED else ""
        return ", ".join([*value][:_LISTED]) + more or "nothing"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:7.4f}" if isinstance(value, float) else str("" if value is None else value)


def _remarks(report: dict[str, Any]) -> Iterator[str]:
    if report["kind"] == "statistics":
        yield f"quantiles: of {QUANTILE_STEPS} steps spread evenly over each episode"
    if report["kind"] != "rlds":
        return
    yield f"{report['files']} files, {decimal(report['bytes'])}"
    if report["episode"]:
        yield f"of an episode: {', '.join(report['episode'])}"
    if report["prepared"]:
        yield from _prepared(report["prepared"])
    words = report["language"]
    if words["feature"]:
        yield f"instructions: {words['feature']}, {words['different']} different in what was read"
        yield from (f"    {text!r}" for text in words["examples"])
        if words["empty"]:
            yield f"    empty in {words['empty']} of the {report['length']['read']} episodes read"
    else:
        yield "instructions: none found"
    if report["schema"]:
        yield f"schema: train.rlds_schema={report['schema']}"
        yield from (f"    without {key}: {why}" for key, why in report.get("left_out", {}).items())
    else:
        yield "schema: none of ours fits; -o DIR drafts one (docs/rlds_schemas.md)"
    if "written" in report:
        yield "written: " + ", ".join(report["written"])
        yield report["next"]


def _prepared(notes: dict[str, Any]) -> Iterator[str]:
    yield f"prepared: by {notes['by']} from {notes['folder']} ({notes['fingerprint']})"
    yield f"    {prepared.quality(notes)}"
    if notes["dropped"]:
        yield f"    dropped: {', '.join(notes['dropped'])}"
    damaged = sum(len(names) for split in notes["left_out"].values() for names in split.values())
    if damaged:
        yield f"    {damaged} damaged episodes of the source are left out"
