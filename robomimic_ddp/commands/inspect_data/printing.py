"""Prints reports, as tables and remarks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.filesize import decimal

from robomimic_ddp.data.rlds.index import prepared
from robomimic_ddp.terminal import print_clean, say, table, width

TABLES = ("cameras", "features", "actions")
"""Sections of a report that map names to rows, {column: cell}."""


def show(reports: dict[str, Any] | list[dict[str, Any]]) -> None:
    """Print the report of a dataset, or the reports of a job's datasets."""
    for report in reports if isinstance(reports, list) else [reports]:
        say(f"{report['path']}: {_summary(report)}")
        for title in TABLES:
            if rows := report.get(title):
                head = [
                    f"{name:>7}" if title == "actions" else name for name in [*rows.values()][0]
                ]
                body = [(name, *map(_cell, row.values())) for name, row in rows.items()]
                print_clean("\n" + "\n".join(table([(title, *head), *body], width())))
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


def _cell(value: Any) -> str:
    if isinstance(value, list):  # a shape
        return " x ".join("?" if size is None else str(size) for size in value) or "1"
    return f"{value:7.4f}" if isinstance(value, float) else str("?" if value is None else value)


def _remarks(report: dict[str, Any]) -> Iterator[str]:
    if report.get("filter_keys"):
        yield f"filter keys: {', '.join(report['filter_keys'])}"
    if report["kind"] != "rlds":
        return
    yield f"{report['files']} files, {decimal(report['bytes'])}"
    if report["episode"]:
        yield f"features of an episode: {', '.join(report['episode'])}"
    if notes := report["prepared"]:
        yield f"prepared by {notes['by']} from {notes['folder']} ({notes['fingerprint']})"
        yield f"    {prepared.quality(notes)}"
        if damaged := prepared.damaged(notes):
            yield f"    without {damaged} damaged episodes of the source"
    words = report["language"]
    if words["feature"]:
        empty = f"; empty in {words['empty']} episodes" if words["empty"] else ""
        yield (
            f"instructions: {words['feature']}, {words['different']} distinct ones in "
            f"{report['length']['read']} episodes{empty}"
        )
        yield from (f"    {text!r}" for text in words["examples"])
    else:
        yield "instructions: none found"
    if report["schema"]:
        yield f"schema: train.rlds_schema={report['schema']}"
        yield from (f"    without {key}: {why}" for key, why in report.get("left_out", {}).items())
    else:
        yield "schema: no packaged schema fits; -o DIR drafts one (docs/rlds_schemas.md)"
    if "written" in report:
        yield "written: " + ", ".join(report["written"])
        yield report["next"]
