"""Questions and files: asked, written, copied, moved and removed by the main rank, once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import libcst as cst

from robomimic_ddp.patches.edits import (
    api_calls,
    argument,
    calls,
    definition,
    names_in,
    rename,
    renamed,
    text_of,
    unrecognised,
    wrap,
)
from robomimic_ddp.patches.host.hosts import TRAIN_SCRIPTS
from robomimic_ddp.patches.outcomes import Fixer, Found
from robomimic_ddp.patches.syntax.imports import dotted
from robomimic_ddp.patches.syntax.source import Edit, Source, walk

HELPERS = ("utils/train_utils.py",)
FILE_OPERATIONS = (
    *("shutil.copy", "shutil.copy2", "shutil.copytree", "shutil.move", "shutil.rmtree"),
    *("os.mkdir", "os.remove", "os.rename", "os.replace", "os.symlink", "os.unlink"),
)
_ARGUMENTS = {"mode", "encoding", "errors", "newline"}
FILE = "outfile"
"""What robomimic calls a file that it writes."""
OPEN = ".open_on_main"
VIDEOS = "video_paths"
"""What rollouts return; only the main rank has them, so removing them needs no edit."""


def _saves(source: Source, save_model: cst.FunctionDef) -> Iterator[Found]:
    """`torch.save(params, path)` in `save_model`, and in functions of the file that it calls."""
    called = {dotted(call.func) for call in walk(save_model, cst.Call)} - {"", "save_model"}
    helpers = (definition(source, f"def {name}") for name in sorted(called))
    for function in chain([save_model], filter(None, helpers)):
        yield from api_calls(source, function, "save")
        for call in calls(source, function, "torch.save", "torch.serialization.save"):
            if len(call.args) != 2 or any(arg.keyword or arg.star for arg in call.args):
                why = "torch.save is called in another way than torch.save(params, path)"
                yield unrecognised(source, call, why)
            yield rename(source, call, "save")


def _file_operations(source: Source, train: cst.FunctionDef) -> Iterator[Found]:
    """`shutil.move(...)` becomes `DDPUtils.main_rank_only(shutil.move)(...)`; `copyfile`, which
    ours writes atomically, only goes to it.
    """
    yield from renamed("copyfile", "shutil.copyfile")(source, train)
    for call in source.calls(train):
        if not (source.resolves(call.func, *FILE_OPERATIONS) or _makes_folder(source, call)):
            continue
        if VIDEOS not in names_in(*call.args):
            yield wrap(source, call.func, "main_rank_only")


def _makes_folder(source: Source, call: cst.Call) -> bool:
    """Return whether it is `os.makedirs(path)` or `Path(path).mkdir()`, which fail where another
    rank was first; with `exist_ok=True` they do not.
    """
    is_method = isinstance(call.func, cst.Attribute) and call.func.attr.value == "mkdir"
    makes = source.resolves(call.func, "os.makedirs") or (
        is_method and any(calls(source, call.func.value, "pathlib.Path"))
    )
    return makes and dotted(argument(call, 2, "exist_ok")) != "True"


def _written(source: Source, train: cst.FunctionDef) -> Iterator[Found]:
    """`with open(path, 'w')`, or 'a'; files opened to be read stay. The file of a statement
    `json.dump(config, open(path, 'w'))` gets a with statement.
    """
    with_items = {item.item for item in walk(train, cst.WithItem)}
    lines = _single_calls(train)
    for call in calls(source, train, "builtins.open"):
        mode = argument(call, 1, "mode")
        text = text_of(mode)
        if mode is None or (text and not set(text) & set("wax+")):
            continue
        plain = [arg for arg in call.args if not arg.keyword]
        named = {arg.keyword.value for arg in call.args if arg.keyword}
        is_known = (
            len(plain) <= 2 and named <= _ARGUMENTS and not any(arg.star for arg in call.args)
        )
        if text.strip("bt") not in ("w", "a") or not is_known:
            why = "a file is opened for writing in another way than open(path, 'w') or 'a'"
            yield unrecognised(source, call, why)
        elif call in lines:
            yield Edit(lines[call], _with_file)
        elif call not in with_items:
            why = "a file is opened for writing outside the head of a with statement"
            yield unrecognised(source, call, why)
        yield rename(source, call, "open_on_main")


def _single_calls(train: cst.FunctionDef) -> dict[cst.BaseExpression, cst.SimpleStatementLine]:
    """Return the lines that are one call, by the call's object and each of its arguments; none
    where the name that a with statement would give the file is taken.
    """
    lines: dict[cst.BaseExpression, cst.SimpleStatementLine] = {}
    if FILE in names_in(train):
        return lines
    for line in walk(train, cst.SimpleStatementLine):
        match line.body:
            case [cst.Expr(cst.Call(func=func, args=args))]:
                values = [arg.value for arg in args if not arg.star]
                if isinstance(func, cst.Attribute):
                    values.append(func.value)
                lines |= dict.fromkeys(values, line)
    return lines


def _with_file(line: cst.SimpleStatementLine) -> cst.With:
    """`json.dump(config, DDPUtils.open_on_main(path))` becomes the body of a with statement whose
    file it takes.
    """
    opened = next(call for call in walk(line, cst.Call) if dotted(call.func).endswith(OPEN))
    item = cst.WithItem(opened, cst.AsName(cst.Name(FILE)))
    inside = line.deep_replace(opened, cst.Name(FILE)).with_changes(leading_lines=())
    return cst.With([item], cst.IndentedBlock([inside]), leading_lines=line.leading_lines)


FIXERS = {
    # Ranks share one terminal, and a job in a queue has none.
    "ask": Fixer(
        "run directory",
        HELPERS,
        renamed("ask", "builtins.input"),
        "ask with DDPUtils.ask(prompt)",
        words=("def get_exp_dir(",),
        done=("ask",),
        missing="get_exp_dir asks nothing",
    ),
    # A crash leaves the previous checkpoint readable.
    "atomic_save": Fixer(
        "checkpoints",
        HELPERS,
        _saves,
        "write the checkpoint with DDPUtils.save(params, path)",
        within="def save_model",
        missing="save_model does not call torch.save",
    ),
    # Of several ranks all but the first would find nothing left to move, or half of a copy.
    "copyfile": Fixer(
        "files",
        TRAIN_SCRIPTS,
        _file_operations,
        "copy files with DDPUtils.copyfile, and let one rank move, remove and make directories: "
        "DDPUtils.main_rank_only(shutil.move)(...)",
        within="def train",
        done=("copyfile", "main_rank_only"),
        missing="train() copies, moves and removes no file, and makes no directory",
    ),
    # last.pth to last_bak.pth: what other ranks would copy is not there yet.
    "helper_copies": Fixer(
        "files",
        HELPERS,
        renamed("copyfile", "shutil.copyfile"),
        "copy it with DDPUtils.copyfile(source, target)",
        words=("copyfile",),
        done=("copyfile",),
        missing="no helper copies a file",
        absent="no helper copies a file",
    ),
    # config.json: atomically.
    "open_on_main": Fixer(
        "files",
        TRAIN_SCRIPTS,
        _written,
        "let only the main rank write it: with DDPUtils.open_on_main(path, 'w') as f; or with 'a', "
        "which appends, as to a log",
        within="def train",
        done=("open_on_main",),
        missing="train() opens no file for writing",
    ),
}
