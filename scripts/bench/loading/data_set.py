"""The datasets of `scripts.bench.data`: made-up episodes, with images of natural entropy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

PREPARED = "ours_prepared"
OURS = ("ours", PREPARED)
"""Our loader: as it is, and on a dataset stored at the delivered size."""
VERSION = "1.0.0"
DEFAULT_FOLDER = "~/.cache/robomimic_ddp/bench"
STORED_CAMERAS = ("exterior_image_1_left", "exterior_image_2_left")
CAMERAS = (
    "camera/image/varied_camera_1_left_image",
    "camera/image/varied_camera_2_left_image",
)
STATES = ("robot_state/cartesian_position", "robot_state/gripper_position")
ACTIONS = ("action/abs_pos", "action/abs_rot_6d", "action/gripper_position")
_ROAM = 96
"""Range of a camera's path on its canvas, in pixels."""


@dataclass(frozen=True)
class DataJob:
    """Dataset and batches of all loaders of a run. stored, target: (height, width) of images on
    disk and in batches; buffer: windows in the shuffle buffers of all ranks;
    threads: of each process; prepared: read what `prepare-data` makes of the dataset.
    """

    folder: str
    stored: tuple[int, int]
    target: tuple[int, int]
    threads: int = 1
    episodes: int = 200
    steps: int = 40
    batch: int = 32
    frame_stack: int = 2
    buffer: int = 2000
    seq_length: int = 16
    prepared: bool = False

    @property
    def frames_per_sample(self) -> int:
        """Camera frames in one window."""
        return self.frame_stack * len(CAMERAS)

    def read_by(self, loader: str) -> DataJob:
        """The job of `loader`, which reads another dataset if it is PREPARED."""
        return replace(self, prepared=loader == PREPARED)

    @property
    def path(self) -> Path:
        """The version folder of its dataset."""
        height, width = self.stored
        name = f"bench_{height}x{width}_{self.episodes}x{self.steps}"
        return self.root / name / VERSION

    @property
    def root(self) -> Path:
        """The folder of its dataset."""
        height, width = self.target
        folder = Path(self.folder).expanduser()
        return folder / f"prepared_{height}x{width}" if self.prepared else folder


def write_if_missing(job: DataJob) -> None:
    """Write the dataset of `job` and its index, if missing."""
    from robomimic_ddp.data.rlds.index.source import is_rlds_folder
    from scripts.write_rlds import write_dataset

    if job.prepared:
        write_if_missing(replace(job, prepared=False))
        _prepare(job)
    elif not is_rlds_folder(str(job.path)):
        episodes = made_up_episodes(job.episodes, job.steps, *job.stored)
        root, name = str(job.path.parent.parent), job.path.parent.name
        files = max(2, job.episodes // 16)
        write_dataset(root, name, VERSION, episodes, job.episodes, files, STORED_CAMERAS)
    open_dataset(job)


def _prepare(job: DataJob) -> None:
    """Make the dataset of `job` as `prepare-data` does, from the one that is not prepared."""
    from robomimic_ddp.commands.prepare_data import job as prepare_data
    from robomimic_ddp.commands.prepare_data import writing
    from robomimic_ddp.commands.prepare_data.command import QUALITY
    from robomimic_ddp.data.rlds.index.source import Source

    source = Source(replace(job, prepared=False).path)
    cameras = tuple(f"observation/{name}" for name in STORED_CAMERAS)
    task = prepare_data.Job(source, job.root, job.target, QUALITY, cameras, (), False, job.threads)
    if not task.is_complete():
        task.begin()
        left = [file for file in task.files if task.note_of(file) is None]
        writing.write_all(task, left, lambda count: None)
        task.complete()


def open_dataset(job: DataJob) -> Any:
    """Return the RLDSDataset of `job`, with its index in `job.folder`."""
    from robomimic_ddp.data.rlds.dataset import LoadOptions, RLDSDataset
    from robomimic_ddp.data.rlds.index.cache import load_index
    from robomimic_ddp.data.rlds.index.source import Source
    from robomimic_ddp.data.rlds.order.windows import WindowShape
    from robomimic_ddp.data.rlds.schema.fields import find_fields
    from robomimic_ddp.data.rlds.schema.spec import load_schema

    source = Source(job.path)
    keys = [*CAMERAS, *STATES]
    fields = find_fields(source.features, str(job.path), keys, CAMERAS, ACTIONS, load_schema())
    index = load_index(source, fields, str(Path(job.folder).expanduser() / "index"))
    rows = np.arange(len(index.length))
    shape = WindowShape(job.frame_stack, job.seq_length, True, True)
    normalised = {key: {"normalization": "min_max"} for key in ACTIONS}
    options = LoadOptions(job.buffer, None, job.threads)
    return RLDSDataset(source, fields, index, rows, rows, shape, job.target, normalised, options)


def bytes_per_frame(job: DataJob) -> float:
    """Mean bytes of a stored image, with the numbers of its step."""
    total = sum(file.stat().st_size for file in job.path.glob("*tfrecord*"))
    return total / (job.episodes * job.steps * len(STORED_CAMERAS))


def made_up_episodes(
    count: int, steps: int, height: int, width: int, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """Episodes of `steps` steps: cameras that move over textures with the spectrum of photographs
    and sensor noise, states and actions that drift.
    """
    draw = np.random.default_rng(seed)
    canvases = [_texture(draw, height + _ROAM, width + _ROAM) for _ in range(6)]
    noise = draw.integers(-2, 3, (8, height, width, 3), np.int16)
    for number in range(count):
        drift = draw.normal(0, 2, (len(STORED_CAMERAS), steps, 2)).cumsum(1)
        places = (np.abs(drift + draw.uniform(0, _ROAM, 2)) % _ROAM).astype(int)
        pose = draw.normal(0, 0.02, (steps, 6)).cumsum(0)
        rows = []
        for step in range(steps):
            seen = {}
            for camera, name in enumerate(STORED_CAMERAS):
                top, left = places[camera, step]
                canvas = canvases[(number + camera) % len(canvases)]
                picture = canvas[top : top + height, left : left + width]
                picture = picture + noise[(step + camera) % len(noise)]
                seen[name] = np.clip(picture, 0, 255).astype(np.uint8)
            seen["cartesian_position"] = pose[step]
            seen["gripper_position"] = draw.uniform(0, 1, 1)
            seen["joint_position"] = draw.normal(size=7)
            goal = pose[step] + draw.normal(0, 0.01, 6)
            acted = {"cartesian_position": goal, "gripper_position": draw.uniform(0, 1, 1)}
            vector = draw.normal(size=7)
            rows.append({"observation": seen, "action_dict": acted, "action": vector})
        yield {"steps": rows, "success": True, "language": f"do task {number % 20}"}


def _texture(draw: Any, height: int, width: int) -> np.ndarray:
    """int16 [height, width, 3]: amplitudes fall with the frequency, as in photographs (Field,
    1987).
    """
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    fall = 1 / np.maximum(frequency, 1 / max(height, width)) ** 1.4
    shape = (height, width)
    grey, *tints = (np.fft.irfft2(np.fft.rfft2(draw.normal(size=shape)) * fall, s=shape)
                    for _ in range(4))  # fmt: skip
    picture = np.stack([grey + 0.3 * tint for tint in tints], -1)
    picture = (picture - picture.mean()) / picture.std()
    return np.clip(118 + 52 * picture, 0, 255).astype(np.int16)
