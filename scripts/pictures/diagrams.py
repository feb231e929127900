"""Drawings of boxes and arrows, as SVG that is legible on a phone: 480 wide, in letters of 14."""

from __future__ import annotations

from html import escape

from robomimic_ddp.commands import plot
from scripts.pictures.terminal import IMAGES

WIDTH, LETTERS, LINE = 480, 14, 18
INK, PALE, STOP = "#1f2937", "#e5e7eb", "#b91c1c"
SVG = """<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" \
xmlns="http://www.w3.org/2000/svg" font-family="sans-serif" font-size="{letters}">
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" \
orient="auto"><path d="M0,0 8,4 0,8z" fill="{ink}"/></marker></defs>
<rect width="{width}" height="{height}" rx="8" fill="white"/>
{parts}
</svg>
"""


class Drawing:
    """Boxes, texts and arrows; (x, y) is the upper left corner of a box, the middle of a text."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def box(self, x: float, y: float, w: float, h: float, text: str = "", fill: str = PALE) -> None:
        """A box with a text in its middle, white on a colour."""
        self.parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="4" fill="{fill}"/>')
        if text:
            self.text(x + w / 2, y + h / 2, text, INK if fill == PALE else "white")

    def text(self, x: float, y: float, text: str, fill: str = INK, anchor: str = "middle") -> None:
        """Lines of text around y."""
        lines = text.split("\n")
        for number, line in enumerate(lines):
            at = y + LETTERS * 0.36 + (number - (len(lines) - 1) / 2) * LINE
            self.parts.append(
                f'<text x="{x:g}" y="{at:.1f}" text-anchor="{anchor}" fill="{fill}">'
                f"{escape(line)}</text>"
            )

    def arrow(
        self, *points: float, stroke: str = INK, style: str = 'marker-end="url(#tip)"'
    ) -> None:
        """A line through the points, with a tip unless `style` says otherwise."""
        self.parts.append(
            f'<polyline points="{" ".join(map(str, points))}" fill="none" stroke="{stroke}" '
            f'stroke-width="1.5" {style}/>'
        )

    def save(self, name: str, height: int) -> None:
        """Writes docs/images/diagram_`name`.svg."""
        parts = "\n".join(self.parts)
        sizes = {"width": WIDTH, "height": height, "letters": LETTERS, "ink": INK}
        (IMAGES / f"diagram_{name}.svg").write_text(SVG.format(parts=parts, **sizes))


def draw_step() -> None:
    """A step of two ranks, for docs/first_ddp.md."""
    drawing = Drawing()
    drawing.box(20, 186, 440, 32, "DDP: the mean of both gradients", plot.COLOURS[2])
    for rank in range(2):
        x, colour = 20 + 230 * rank, plot.COLOURS[rank]
        middle = x + 105
        drawing.text(middle, 18, f"rank {rank}")
        drawing.box(x, 34, 210, 32, "equal weights")
        drawing.arrow(middle, 66, middle, 84)
        drawing.box(x, 85, 210, 32, f"batch of rank {rank}", colour)
        drawing.arrow(middle, 117, middle, 135)
        drawing.box(x, 136, 210, 32, f"gradient of rank {rank}", colour)
        drawing.arrow(middle, 168, middle, 185)
        drawing.arrow(middle, 218, middle, 235)
        drawing.box(x, 236, 210, 32, "same step: equal weights")
    drawing.save("step", 284)


def draw_batch() -> None:
    """Samples in a step by the choice of the batch, for docs/batch_and_lr.md."""
    drawing = Drawing()
    rows = [("one rank", [128]), ("four, ddp.batch=per_rank", [128] * 4)]
    rows += [("four, ddp.batch=global", [32] * 4)]
    for number, (name, samples) in enumerate(rows):
        y = 14 + 66 * number
        total = f"{sum(samples)} samples in a step"
        drawing.text(16, y + 8, f"{name}: {total}", anchor="start")
        x = 16.0
        for rank, count in enumerate(samples):
            width = count * 0.84
            drawing.box(x, y + 22, width, 28, str(count), plot.COLOURS[rank])
            x += width + 5
    drawing.save("batch", 212)


def draw_resume() -> None:
    """Batches of a pass that is stopped on two ranks and resumed on four, for
    docs/checkpoints.md.
    """
    drawing = Drawing()
    drawing.text(146, 18, "two ranks")
    drawing.text(384, 18, "four ranks")
    drawing.text(265, 36, "stopped,\nposition\nsaved", STOP)
    drawing.arrow(265, 66, 265, 188, stroke=STOP, style='stroke-dasharray="5 4"')
    batch = 0
    for left, ranks in ((88, 2), (326, 4)):
        for step in range(2):
            for rank in range(ranks):
                batch += 1
                x, y = left + 60 * step, 34 + 40 * rank
                drawing.box(x, y, 54, 32, str(batch), plot.COLOURS[rank])
    for rank in range(4):
        drawing.text(16, 50 + 40 * rank, f"rank {rank}", anchor="start")
    drawing.text(WIDTH / 2, 210, "batches of one pass: each is trained on once")
    drawing.save("resume", 230)


def draw_rlds() -> None:
    """What each rank reads of a pass, for docs/rlds.md."""
    drawing = Drawing()
    drawing.text(16, 18, "files in a new order for each pass, end to end", anchor="start")
    x = 16
    for name, width in (("file 3", 95), ("file 1", 140), ("file 4", 88), ("file 2", 116)):
        drawing.box(x, 32, width, 30, name)
        x += width + 3
    drawing.text(16, 90, "one stretch for each rank, of full batches", anchor="start")
    for rank in range(4):
        x = 16 + 105 * rank
        drawing.box(x, 104, 102, 30, f"rank {rank}", plot.COLOURS[rank])
    drawing.box(436, 104, 28, 30)
    drawing.text(464, 152, "the rest opens the next pass", anchor="end")
    drawing.save("rlds", 170)


def draw_prepared() -> None:
    """What a frame costs in every epoch, by the table of docs/prepared_data.md."""
    drawing = Drawing()
    rows = [("180x320, as downloaded", ["read", "decode", "resize"], 0.58)]
    rows += [("128x128, from prepare-data", ["read", "decode"], 0.11)]
    for number, (name, stages, seconds) in enumerate(rows):
        y, colour = 16 + 116 * number, plot.COLOURS[1 - number]
        drawing.text(16, y + 6, name, anchor="start")
        for stage, label in enumerate(stages):
            drawing.box(16 + 104 * stage, y + 22, 80, 30, label)
            drawing.arrow(97 + 104 * stage, y + 37, 118 + 104 * stage, y + 37)
        drawing.box(16 + 104 * len(stages), y + 22, 80, 30, "train")
        width = seconds * 360
        drawing.box(16, y + 62, width, 22, fill=colour)
        drawing.text(24 + width, y + 73, f"{seconds} CPU s for 1000 frames", anchor="start")
    drawing.save("prepared", 232)


def draw_fsdp() -> None:
    """Memory of a GPU with DDP and FSDP for 1 B parameters, by docs/fsdp.md."""
    drawing = Drawing()
    parts = (("Adam", 8, 0), ("average", 4, 1), ("gradient", 4, 2), ("weight", 4, 3))
    for number, (mode, share) in enumerate(
        (("DDP: 20 GB on each GPU", 1), ("FSDP: 5 GB on each", 4))
    ):
        left = 16 + 236 * number
        drawing.text(left + 106, 18, mode)
        for gpu in range(4):
            bottom = 206.0
            for _, gigabytes, colour in parts:
                height = gigabytes * 8 / share
                bottom -= height
                drawing.box(left + 54 * gpu, bottom, 50, height - 1, fill=plot.COLOURS[colour])
            drawing.text(left + 54 * gpu + 25, 220, f"GPU {gpu}")
    for number, (name, gigabytes, colour) in enumerate(parts):
        x = 16 + 116 * number
        drawing.box(x, 240, 14, 14, fill=plot.COLOURS[colour])
        drawing.text(x + 20, 247, f"{name} {gigabytes}", anchor="start")
    drawing.text(16, 272, "GB for 1 B parameters, without activations", anchor="start")
    drawing.save("fsdp", 292)


def draw_nodes() -> None:
    """Launchers and ranks of two nodes, for docs/nodes.md."""
    drawing = Drawing()
    for node in range(2):
        left = 12 + 232 * node
        drawing.parts.append(
            f'<rect x="{left}" y="10" width="224" height="148" rx="6" fill="none" stroke="{INK}"/>'
        )
        drawing.text(left + 112, 26, f"node0{node + 1}")
        drawing.box(left + 40, 42, 144, 30, "launcher")
        for gpu in range(4):
            x = left + 10 + 52 * gpu
            rank = 4 * node + gpu
            drawing.arrow(left + 112, 72, x + 24, 101)
            fill = plot.COLOURS[1 if rank == 0 else 0]
            drawing.box(x, 102, 48, 46, f"rank\n{rank}", fill)
    drawing.arrow(282, 57, 198, 57)
    drawing.text(WIDTH / 2, 180, "launchers meet at node01:29400; all ranks average gradients")
    drawing.text(
        16, 206, "rank 0, the main rank, writes the run directory", plot.COLOURS[1], "start"
    )
    drawing.save("nodes", 224)


DIAGRAMS = {
    "step": draw_step,
    "batch": draw_batch,
    "resume": draw_resume,
    "rlds": draw_rlds,
    "prepared": draw_prepared,
    "fsdp": draw_fsdp,
    "nodes": draw_nodes,
}


def draw_all() -> None:
    """Draws every diagram."""
    for draw in DIAGRAMS.values():
        draw()
