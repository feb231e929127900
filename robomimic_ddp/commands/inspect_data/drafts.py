"""Writes the drafts for a dataset: contact sheet, schema where none fits, and a config."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from robomimic_ddp.commands.inspect_data import contact_sheet, fitting, job_draft, schema_draft
from robomimic_ddp.commands.inspect_data.survey import Sample
from robomimic_ddp.data.rlds.index.source import Source
from robomimic_ddp.data.rlds.schema.spec import load_schema
from robomimic_ddp.errors import UsageError

SHEET, CONFIG, SCHEMA = "contact_sheet.png", "config.json", "schema.yaml"


def write(source: Source, sample: Sample, report: dict[str, Any], output: Path) -> dict[str, Any]:
    """Write the drafts into the folder `output`, and return what they add to the report. A schema
    that is there has precedence: a user may have edited it. Raises UsageError, DataError.
    """
    file, schema = output.absolute() / SCHEMA, report["schema"]
    written, added = [output / SHEET], {}
    try:
        output.mkdir(parents=True, exist_ok=True)
        contact_sheet.draw(source, sample, output / SHEET)
        is_edited = file.exists()
        if schema is None and not is_edited:
            file.write_text(schema_draft.text_of(source), encoding="utf-8")
            written.append(output / SCHEMA)
        schema = str(file) if file.exists() else schema
        fit = fitting.fit(source, load_schema(schema))
        if is_edited:
            fitting.require(source, fit)
            added = {"schema": schema, "left_out": fit.missing}
        if fit.fits:
            config = job_draft.config_of(source, schema, fit, report["cameras"], output.absolute())
            _write(output / CONFIG, json.dumps(config, indent=4) + "\n")
            written.append(output / CONFIG)
            word = shlex.quote(f"load_from={output / CONFIG}")
            module = "robomimic.scripts.train_rlds"
            added["next"] = f"train on N GPUs: `torchrun --nproc_per_node=N -m {module} {word}`"
        else:
            missing = "observation" if fit.available["actions"] else "action"
            added["next"] = (
                f"next: {output / SCHEMA} names no {missing} that a policy could take, so {CONFIG} "
                "was not written: name it there, then run inspect-data again"
            )
    except OSError as error:
        raise UsageError(f"-o {output} cannot be written to: {error}.") from error
    return {**added, "written": [str(path) for path in written]}


def _write(file: Path, text: str) -> None:
    """Rename an existing, different file to `.old`."""
    if file.exists() and file.read_text(encoding="utf-8", errors="replace") != text:
        file.replace(file.with_name(file.name + ".old"))
    file.write_text(text, encoding="utf-8")
