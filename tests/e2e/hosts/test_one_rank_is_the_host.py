"""On one rank the edited host is the host: losses and checkpoints of every algorithm to the bit
with the preset `safe`, but for rounding with `fast` (for an algorithm with one net, one with
several optimizers, one with EMA) and `max`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from robomimic_ddp.config.options import FIELDS
from tests.configs import VARIANTS, make_config, uses_images, write_config
from tests.hosts import FINISHED, Host, python, require_clean, run, torchrun
from tests.runs import checkpoint_differences, checkpoints, epoch_logs, run_directory
from tests.tiers import slow_but

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


PRESETS = {
    "safe": [*VARIANTS],
    "fast": ["bc", "cql", "diffusion_policy_images"],
    "max": ["diffusion_policy_crops"],
}


FAST = {*VARIANTS} - {
    *("bc_images", "bc_gaussian", "bc_gmm", "bc_vae", "bc_rnn", "bc_transformer_gmm", "gl"),
}
"""The others differ from these in a net that no edit knows of."""


def config_files(folder: Path, low_dim: Path, images: Path, variants: Iterable[str]) -> list[Path]:
    """A configuration of each variant; runs go to folder/<variant>."""
    return [
        write_config(
            folder / f"{variant}.json",
            make_config(variant, images if uses_images(variant) else low_dim, folder / variant),
        )
        for variant in variants
    ]


@pytest.fixture(scope="module")
def trained(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    plain_host: Host,
    host_copy: Host,
    low_dim_dataset: Path,
    image_dataset: Path,
) -> dict[str, tuple[Path, dict[str, str]]]:
    """ "plain", and the edited host's presets -> (folder, variant -> "ok" or what went wrong)."""
    results = {}
    items = [item for item in request.session.items if item.path == request.path]
    tested = {item.callspec.params["variant"] for item in items if hasattr(item, "callspec")} | FAST
    for name, variants in {"plain": VARIANTS, **PRESETS}.items():
        folder = tmp_path_factory.mktemp(name)
        variants = [variant for variant in variants if variant in tested]
        files = config_files(folder, low_dim_dataset, image_dataset, variants)
        host = plain_host if name == "plain" else host_copy
        added = {} if name == "plain" else {"ROBOMIMIC_DDP_PRESET": name}
        done = python(host, "tests.e2e.entries.train_all", *files, timeout=400, added=added)
        require_clean(done)
        results[name] = folder, json.loads(done.stdout.splitlines()[-1])
    return results


def test_every_algorithm_and_preset_is_covered(plain_host: Host) -> None:
    assert {*PRESETS} == {*FIELDS["preset"].metadata["choices"]}
    call = "import robomimic.config as c; print(sorted(c.get_all_registered_configs()))"
    done = run(plain_host, sys.executable, "-c", call)
    require_clean(done)
    assert str(sorted({algo for algo, _ in VARIANTS.values()})) in done.stdout


@pytest.mark.parametrize("variant", slow_but(FAST, VARIANTS))
def test_losses_and_checkpoints_are_equal_to_the_bit(variant: str, trained: Any) -> None:
    directories = {}
    for name, (folder, results) in trained.items():
        if variant not in PRESETS.get(name, VARIANTS):
            continue
        assert results[variant] == "ok", f"{name}: {results[variant]}"
        directories[name] = run_directory(folder / variant)
    plain = directories.pop("plain")
    for preset, edited in directories.items():
        if preset == "safe":
            require_equal_bits(plain, edited)
            continue
        logs, changed = epoch_logs(plain), epoch_logs(edited)
        assert logs.keys() == changed.keys()
        for epoch, log in logs.items():
            assert changed[epoch] == pytest.approx(log, rel=1e-5), (preset, epoch)
        differences = checkpoint_differences(plain / "last.pth", edited / "last.pth")
        assert not any("param_groups" in one or "only in one" in one for one in differences)


def require_equal_bits(plain: Path, edited: Path) -> None:
    """Logs, checkpoints and files of two runs."""
    logs = epoch_logs(plain)
    assert {kind for kind, _ in logs} == {"Train", "Validation"}
    assert all(log for log in logs.values())
    assert epoch_logs(edited) == logs
    files = checkpoints(plain)
    assert {"last.pth", "last_bak.pth"} < set(files)
    assert set(checkpoints(edited)) == set(files)
    for file, path in files.items():
        assert checkpoint_differences(path, checkpoints(edited)[file]) == []
    paths = {path.relative_to(plain) for path in plain.rglob("*") if "tb" not in path.parts}
    assert paths <= {path.relative_to(edited) for path in edited.rglob("*")}


def test_the_comparison_sees_one_changed_bit(trained: Any, tmp_path: Path) -> None:
    import torch

    from tests.runs import load

    original = run_directory(trained["plain"][0] / "diffusion_policy") / "last.pth"
    changed = load(original)
    name, weight = next(iter(changed["model"]["nets"].items()))
    weight.view(-1)[0] = torch.nextafter(weight.view(-1)[0], torch.tensor(1e9))
    torch.save(changed, tmp_path / "changed.pth")
    faults = checkpoint_differences(original, tmp_path / "changed.pth")
    assert len(faults) == 1
    assert name in faults[0]
    del changed["model"]["nets"][name]
    torch.save(changed, tmp_path / "missing.pth")
    assert checkpoint_differences(original, tmp_path / "missing.pth")


def test_the_hosts_own_command_line_on_one_rank(
    trained: Any, host_copy: Host, low_dim_dataset: Path, tmp_path: Path
) -> None:
    config = make_config("diffusion_policy", low_dim_dataset, tmp_path / "runs")
    file = write_config(tmp_path / "config.json", config)
    options = {"ranks": 1, "added": {"ROBOMIMIC_DDP_PRESET": "safe"}}
    done = torchrun(host_copy, "robomimic.scripts.train", "--config", file, **options)
    require_clean(done)
    assert FINISHED in done.stdout
    plain = run_directory(trained["plain"][0] / "diffusion_policy")
    edited = run_directory(tmp_path / "runs")
    assert epoch_logs(edited) == epoch_logs(plain)
    assert checkpoint_differences(plain / "last.pth", edited / "last.pth") == []


def test_a_loss_of_nan_on_one_rank_is_said(
    host_copy: Host, low_dim_dataset: Path, tmp_path: Path
) -> None:
    """The host trains on and exits with 0; so do we, and ddp.json has it."""
    diverging = {"algo": {"optim_params": {"policy": {"learning_rate": {"initial": 1e30}}}}}
    config = make_config("bc", low_dim_dataset, tmp_path / "runs", diverging)
    file = write_config(tmp_path / "config.json", config)
    done = python(host_copy, "robomimic.scripts.train", "--config", file)
    require_clean(done)
    assert done.stdout.count("warning: epoch 1 train: the loss is nan") == 1, done
    record = json.loads((run_directory(tmp_path / "runs") / "ddp.json").read_text())
    assert record["outcome"]["loss_not_finite_since"] == 1
