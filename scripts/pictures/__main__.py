"""`python -m scripts.pictures [NAME...]` draws the pictures of docs/images, all or those named; the
diagrams (`diagram_*.svg`) are edited by hand.

Each shows what a command prints or draws about runs on generated data, which are trained first:
some ten minutes in all on two CPU cores. `scripts/demo.sh` makes demo.gif, and trains the run that
curves.png shows; `python -m scripts.bench.time_to_quality` the one of evaluate.svg and
evaluate.png.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from robomimic_ddp.commands import figures, plot, watch
from robomimic_ddp.config import env
from robomimic_ddp.data.sampling.pass_order import order_of
from robomimic_ddp.data.sampling.sampler import ShardedSampler
from scripts.demo import simulator
from scripts.demo.demonstrations import write_demo_dataset
from scripts.demo.job import CHECKOUT
from scripts.notebooks import STAMP
from scripts.pictures.stage import Stage
from scripts.pictures.terminal import BLUE, COLUMNS, IMAGES, command_line, draw_terminal, shrink

SAMPLES, RANKS, BATCH = 20, 3, 2
DIFF = {"algo/diffusion_policy.py": "parallel(", "scripts/train.py": "train_loader("}
DIFF |= {"utils/train_utils.py": "main_rank_only"}
"""Of each file the hunk with these words is shown."""
CONTEXT = 2
CALLOUTS = {"mode": 1, "batch": 2, "learning rate": 3, "schedule": 4, "data": 5, "memory": 6}
CALLOUTS |= {"preset": 7, "run directory": 8}
"""The number at the plan's lines that begin so; docs/how_it_works.md explains them."""
GREY, RED, GREEN = "#8b98a9", "#5c2b1d", "#14405c"


def draw_pass(stage: Stage) -> None:
    """The first two passes of a small dataset over three ranks."""
    plt = figures.pyplot()
    figure, axes = plt.subplots(2, 1, figsize=(8.2, 3.6), dpi=110, constrained_layout=True)
    order = order_of(range(SAMPLES), None, True, seed=1)
    samplers = [
        ShardedSampler(order, SAMPLES, rank=rank, world_size=RANKS, drop_last=True)
        for rank in range(RANKS)
    ]
    for number, axis in enumerate(axes):
        shares = [list(sampler) for sampler in samplers]
        steps = len(shares[0]) // BATCH
        for rank, share in enumerate(shares):
            for place, sample in enumerate(share):
                kept = place < steps * BATCH
                across = place % BATCH * 0.47 + place // BATCH * 1.1
                colour = plot.COLOURS[rank] if kept else "#d1d5db"
                axis.add_patch(plt.Rectangle((across, -rank), 0.43, 0.8, color=colour))
                style = {"ha": "center", "va": "center", "color": "white", "fontsize": 12}
                axis.text(across + 0.215, 0.4 - rank, str(sample), **style)
            axis.text(-0.08, 0.4 - rank, f"rank {rank}", ha="right", va="center", fontsize=11)
        taken = {sample for share in shares for sample in share[: steps * BATCH]}
        left = sorted({*range(SAMPLES)} - taken)
        axis.set_title(
            f"pass {number}: {steps} steps of {RANKS} x {BATCH} samples; left out: "
            f"{', '.join(map(str, left))}",
            loc="left",
            fontsize=11,
        )
        axis.set_xlim(-0.45, steps * 1.1 - 0.1)
        axis.set_ylim(1 - RANKS - 0.1, 0.9)
        axis.axis("off")
    figures.save(figure, str(IMAGES / "pass.png"))
    shrink(IMAGES / "pass.png")


def draw_apply(stage: Stage) -> None:
    """Three of the edits, as `diff` prints them."""
    edits = stage.ours("diff", stage.plain)
    shown: list[Any] = [command_line(f"robomimic-ddp diff ~/{stage.plain}"), ""]
    for name, words in DIFF.items():
        (part,) = re.findall(rf"^\+\+\+ b/{name}\n(.*?)(?=^diff|\Z)", edits, re.M | re.S)
        hunks = re.split(r"^(?=@@)", part, flags=re.M)
        head, *lines = next(one for one in hunks if words in one).splitlines()
        changed = [at for at, line in enumerate(lines) if line[0] in "+-"]
        near = lines[max(0, changed[0] - CONTEXT) : changed[-1] + CONTEXT + 1]
        near = [line for line in near if line.strip()]
        shown += [Text(f"+++ b/{name}", style="bold"), *map(_diff_line, [head, *near]), ""]
    draw_terminal("apply", "robomimic-ddp diff: three of the edits", *shown[:-1])


def _diff_line(line: str) -> Text:
    style = {"+": f"on {GREEN}", "-": f"on {RED}"}.get(line[0], GREY)
    line = line if len(line) <= COLUMNS else line[: COLUMNS - 4] + " ..."
    return Text(line.ljust(COLUMNS), style=style, no_wrap=True)


def draw_plan(stage: Stage) -> None:
    """The plan that a run prints, with numbers that docs/how_it_works.md explains."""
    printed = stage.relative(stage.two_ranks)
    plan = printed[printed.index("mode: ", printed.index("= robomimic-ddp =")) :]
    plan = plan[: plan.index("\n", plan.index("run directory: "))]
    table = Table.grid(padding=(0, 1))
    numbered = set()
    for line in plan.splitlines():
        key, _, rest = line.partition(": ")
        number = CALLOUTS.get(key, "")
        mark = (
            Text(f" {number} ", style="bold #111827 on #e6b43c") if number not in numbered else ""
        )
        numbered.add(number)
        table.add_row(mark if number else "", Text.assemble((f"{key}: ", BLUE), rest))
    command = "torchrun --nproc_per_node=2 -m robomimic.scripts.train_rlds load_from=cfg.json"
    draw_terminal("plan", "the plan", command_line(command), "", table)


def draw_watch(stage: Stage) -> None:
    """`watch`: both ranks train; then one of them does not answer."""
    _ = stage.two_ranks
    shown: list[Any] = [command_line("robomimic-ddp watch runs/two_ranks/" + STAMP), ""]
    for screen in stage.screens:
        at = [{**one, "time": time.time() - one["seen"]} for one in screen.beats]
        shown += [watch.Screen(at, summary=screen.summary), ""]
    shown[4:4] = [Text("... and after one rank has been suspended:", style=GREY), ""]
    draw_terminal("watch", "robomimic-ddp watch", Group(*shown[:-1]))


def draw_curves(stage: Stage) -> None:
    """`plot` of the demo's run."""
    runs = [*CHECKOUT.glob("runs/demo/training/*/*/history.jsonl")]
    if not runs:
        raise SystemExit("curves: there is no run in runs/demo. Run scripts/demo.sh first.")
    stage.ours("plot", str(runs[0].parent), "-o", str(IMAGES / "curves.png"))
    shrink(IMAGES / "curves.png")


def draw_evaluate(stage: Stage) -> None:
    """The table and the figure of an evaluation."""
    root = CHECKOUT / "runs" / "time_to_quality" / "demo"
    runs = [*root.glob("1_rank_1/*/*/history.jsonl")]
    if not runs:
        raise SystemExit("evaluate: run `python -m scripts.bench.time_to_quality` first.")
    run = runs[0].parent
    stage.environment = env.child_environment([str(root / "host"), str(CHECKOUT)])
    words = ["--checkpoints", "all", "--episodes", "50"]
    rows = stage.ours("evaluate", str(run), *words).splitlines()
    table = rows[next(n for n, row in enumerate(rows) if row.startswith("epoch ")) :]
    command = command_line(f"robomimic-ddp evaluate runs/reach/{STAMP} {' '.join(words)}")
    shown = [Text(row, style=GREY if row is table[0] else "", no_wrap=True) for row in table]
    columns = max(map(len, table))
    draw_terminal("evaluate", "robomimic-ddp evaluate", command, "", *shown, columns=columns)
    stage.ours("plot", str(run), "-o", str(IMAGES / "evaluate.png"))
    shrink(IMAGES / "evaluate.png")


def draw_sweep(stage: Stage) -> None:
    """The table and the figure of a sweep."""
    shown = stage.ours("sweep", "show", stage.sweep).splitlines()
    lines = [
        Text(line, style=GREY if number in (0, len(shown)) else "")
        for number, line in enumerate(shown)
    ]
    draw_terminal(
        "sweep", "robomimic-ddp sweep", command_line("robomimic-ddp sweep show lr"), *lines
    )
    runs = sorted(path.parent for path in stage.folder.glob("lr/trials/*/*/history.jsonl"))
    stage.ours("plot", *map(str, runs), "-o", str(IMAGES / "sweep.png"))
    shrink(IMAGES / "sweep.png")


def draw_contact_sheet(stage: Stage) -> None:
    """`inspect-data` on the demo's data, in a light that suits people."""
    with _lit():
        write_demo_dataset(stage.folder / "lit", 2, 0, 1)
    stage.ours("inspect-data", "lit", "-o", "sheet")
    shutil.copy(stage.folder / "sheet" / "contact_sheet.png", IMAGES)
    shrink(IMAGES / "contact_sheet.png")


@contextmanager
def _lit() -> Iterable[None]:
    names = ("TABLE_COLOUR", "FLOOR_COLOUR", "TOOL_COLOUR", "BLOCK_COLOUR")
    names += ("OPEN_COLOUR", "CLOSED_COLOUR")
    scene, block, gripper = simulator.LIT
    before = [getattr(simulator, name) for name in names]
    for name, colour in zip(names, (*scene, block, *gripper)):
        setattr(simulator, name, colour)
    try:
        yield
    finally:
        for name, colour in zip(names, before):
            setattr(simulator, name, colour)


PICTURES: dict[str, Callable[[Stage], None]] = {
    "pass": draw_pass,
    "apply": draw_apply,
    "contact_sheet": draw_contact_sheet,
    "plan": draw_plan,
    "watch": draw_watch,
    "sweep": draw_sweep,
    "curves": draw_curves,
    "evaluate": draw_evaluate,
}


def main(names: list[str]) -> None:
    """Draws the named pictures, or all."""
    unknown = {*names} - {*PICTURES}
    if unknown:
        raise SystemExit(f"no such picture: {', '.join(unknown)}; there are {', '.join(PICTURES)}.")
    with tempfile.TemporaryDirectory(prefix="pictures_") as folder:
        stage = Stage(Path(folder))
        for name in names or PICTURES:
            print(f"{name} ...", flush=True)
            PICTURES[name](stage)


if __name__ == "__main__":
    main(sys.argv[1:])
