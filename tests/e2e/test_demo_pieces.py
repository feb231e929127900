"""The demo in small, from nothing to the summary, and what a second run does."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robomimic_ddp.monitoring.records import evaluation
from tests.hosts import NO_TENSORFLOW, ROOT, Host, Result, python, require_clean

pytest.importorskip("tensorflow_datasets", reason="the extra [rlds] is not installed")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(500)]

STEPS, EPOCHS, BATCH = 2, 2, 4
SETTINGS = [
    f"experiment.epoch_every_n_steps={STEPS}",
    f"train.num_epochs={EPOCHS}",
    f"train.batch_size={BATCH}",
    "algo.unet.down_dims=[16,32]",
    "observation.image_dim=[32,32]",
    "experiment.env_meta_update_dict.env_kwargs.image_dim=[32,32]",
]


def run_demo(root: Path) -> Result:
    """Where TensorFlow is not installed."""
    sizes = ["--demonstrations", 24, "--evaluations", 2, "--ranks", 2]
    arguments = ["--root", root, *sizes, *SETTINGS]
    options = {"timeout": 400.0, "cold": True, "added": NO_TENSORFLOW}
    return python(None, "scripts.demo", *arguments, **options)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """(root, result) of a first run."""
    root = tmp_path_factory.mktemp("demo") / "root"
    result = run_demo(root)
    assert result.returncode == 0 and not result.leftovers, result
    return root, result


def summary_of(root: Path) -> dict[str, Any]:
    return json.loads((root / "summary.json").read_text())


@pytest.mark.slow
def test_the_summary_says_what_the_run_did(demo: Any) -> None:
    from PIL import Image

    from scripts.demo.summary import KEYS

    root, result = demo
    summary = summary_of(root)
    assert tuple(summary) == KEYS
    assert (summary["mode"], summary["backend"], summary["world_size"]) == ("ddp", "gloo", 2)
    assert summary["steps"] == STEPS * EPOCHS and summary["samples_per_step"] == 2 * BATCH
    assert summary["gradients_equal"] is True and summary["noise_differs"] is True
    config = json.loads((ROOT / "configs" / "demo.json").read_text())
    cameras = len(config["observation"]["modalities"]["obs"]["rgb"])
    frames = STEPS * EPOCHS * 2 * BATCH * config["train"]["frame_stack"] * cameras
    assert summary["frames_decoded"] == summary["frames_delivered"] == frames
    rate = config["algo"]["optim_params"]["policy"]["learning_rate"]["initial"]
    assert summary["learning_rate"] == rate
    assert 0 <= summary["success_before"] <= 1 and 0 <= summary["success_after"] <= 1
    assert 0 < summary["last_loss"] < 3 and summary["samples_per_second"] > 0
    for file in map(Path, (summary["checkpoint"], summary["curves"])):
        assert file.is_file() and root in file.parents
    assert list((root / "cache").iterdir()), "the index of the dataset belongs under the root"
    assert str(root / "policy.gif") in result.stdout
    with Image.open(root / "policy.gif") as picture:  # before and after, side by side
        assert picture.n_frames > 2 and picture.width > 2 * picture.height


@pytest.mark.slow
def test_evaluate_plays_its_checkpoints(demo: Any, tmp_path: Path) -> None:
    """The copy of the host has the demo's simulator."""
    root, _ = demo
    run = Path(summary_of(root)["checkpoint"]).parent
    result = python(Host(root / "host"), "robomimic_ddp", "evaluate", run, "--episodes", 2)
    require_clean(result)
    (line,) = evaluation.results(run)
    assert (line["env"], line["episodes"], line["epoch"]) == ("reach_demo", 2, EPOCHS)
    assert 1 <= line["log"]["Horizon"] <= 70
    assert "cannot be seeded" not in result.stdout
    other = python(None, "robomimic_ddp", "evaluate", run, "--episodes", 3)
    assert other.returncode == 1 and "Expected the host that trained it" in other.stderr, other
    host = Host(shutil.copytree(root / "host", tmp_path / "host"))
    environments = host.package / "utils" / "env_utils.py"
    environments.write_text(environments.read_text().rpartition("\n\ndef get_env_class")[0])
    without = python(host, "robomimic_ddp", "evaluate", run, "--episodes", 3)
    assert without.returncode == 1 and "docs/evaluate.md says" in without.stderr, without


@pytest.mark.slow
def test_the_terminal_has_the_gist_and_the_logs_the_rest(demo: Any) -> None:
    root, result = demo
    shown, summary = result.stdout + result.stderr, summary_of(root)
    assert len(shown.splitlines()) < 80 and "Obs Spec" not in shown, shown
    assert all(f"epoch {number}: " in shown for number in (1, 2)) and "ETA" not in shown, shown
    assert shown.count("mode: DistributedDataParallel, 2 rank(s)") == 1
    assert f"in {summary['success_after']:.0%} after." in result.stdout
    assert "Obs Spec" in (root / "logs" / "training.log").read_text()
    assert "patched now" in (root / "logs" / "host.log").read_text()


@pytest.mark.slow
def test_a_second_run_keeps_what_is_complete_and_says_the_same(demo: Any) -> None:
    """Its pieces: tests/scripts/test_demo_signals.py."""
    root, _ = demo
    before = summary_of(root)
    written = [(root / name).stat().st_mtime_ns for name in ("data", "training", "evaluation.json")]
    result = run_demo(root)
    assert result.returncode == 0, result
    steps = ("data", "training", "evaluation")
    assert all(f"=== {step}: done before" in result.stdout for step in steps), result
    assert all(f"=== {step}: " in result.stdout for step in ("host", "curves")), result
    assert summary_of(root) == before
    now = [(root / name).stat().st_mtime_ns for name in ("data", "training", "evaluation.json")]
    assert now == written


def test_an_expert_in_the_policys_place_succeeds() -> None:
    """The evaluator itself: frame stack, chunks, rotations and the simulator, all but the net."""
    from scripts.demo import animation, demonstrations, evaluate

    policy, films = ExpertPolicy(), []
    assert evaluate.success_rate(policy, 10, 18, 32, films) >= 0.9
    for film in films:
        colour = animation.SUCCESS if film.simulator.success else animation.FAILURE
        assert film.frame(0) is film.pictures[0] and film.frame(1000).getpixel((1, 1)) == colour
    assert len(films) == animation.SHOWN and any(film.simulator.success for film in films)
    assert policy.shapes == {(2, 6), (2, 8, 8, 3)}
    assert evaluate.FIRST_SEED > np.random.RandomState(0).randint(2**31, size=1000).max()
    assert demonstrations.LONGEST_EPISODE > 0


class ExpertPolicy:
    """Stands for a RolloutPolicy of one camera, and knows where the blocks are."""

    def __init__(self) -> None:
        from types import SimpleNamespace as Space

        keys = ["robot_state/cartesian_position", "camera/image/varied_camera_1_left_image"]
        observation = Space(image_dim=[8, 8])
        config = Space(all_obs_keys=keys, observation=observation, train=Space(frame_stack=2))
        self.policy = Space(global_config=config, get_action=None)
        self.shapes: set[tuple[int, ...]] = set()
        self.blocks: dict[bytes, np.ndarray] = {}

    def start_episode(self) -> None:
        from scripts.demo.evaluate import FIRST_SEED
        from scripts.demo.simulator import ReachSimulator

        simulator = ReachSimulator(18, 32)
        for number in range(10):
            simulator.reset(FIRST_SEED + number)
            self.blocks[simulator.angles.tobytes()] = simulator.block.copy()

    def __call__(self, batch: dict[str, np.ndarray], batched_ob: bool) -> np.ndarray:
        from robomimic_ddp.data.rlds.schema.rotations import convert
        from scripts.demo import demonstrations
        from scripts.demo.simulator import ReachSimulator

        self.shapes.update(values.shape[1:] for values in batch.values())
        actions = []
        for pose in batch["robot_state/cartesian_position"][:, -1]:
            simulator = ReachSimulator(18, 32)
            near = min(self.blocks, key=lambda key: abs(np.frombuffer(key)[2] - pose[5]))
            simulator.block, simulator.tip = self.blocks[near], pose[:3].copy()
            for _ in range(8):
                goal, gripper = demonstrations.command(simulator, simulator.block[:2], 0.03)
                goal[3:] = pose[3:]  # the yaw names the episode here: keep it
                simulator.step(goal, gripper)
                turn = convert(goal[3:], "euler_xyz", "rot_6d")
                actions.append(np.concatenate([goal[:3], turn, [gripper]]))
        return np.array(actions)
