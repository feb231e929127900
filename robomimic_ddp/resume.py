"""Going on where a run stopped: which directory, what is put back, what each epoch's end keeps.

`ddp_state.pth` is read alone. The main rank reads it and tells the others, tensor by tensor: nodes
need not share a disk, and all ranks go on from one file even where two nodes would see different
ones.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import robomimic_ddp
from robomimic_ddp import algo as host_algo
from robomimic_ddp import (
    env,
    group,
    history,
    host_config,
    main_rank,
    metrics,
    random_streams,
    state,
)
from robomimic_ddp import run as _run
from robomimic_ddp.errors import CheckpointError, Stopped


def decide(config: Any, run: _run.Run, host_asked: bool, host_can: bool) -> bool:
    """Collective: looks for the run to continue, where one is asked for (`ddp.resume`, the host's
    own flag) or torchrun has started the ranks anew. What it finds is `run.found`.

    Returns whether the host shall resume by itself: from its own checkpoint, in a directory without
    a state of ours. `host_can`: its train() has a parameter `resume`. Raises CheckpointError where
    there is nothing to resume, and Stopped where torchrun starts the ranks anew of a job that has
    stopped on request.
    """
    launch = env.read_launch_env()
    asked = run.options.values.resume or host_asked
    if not asked and not launch.restart_count:
        return False

    def find() -> state.Found | None:
        experiment = host_config.experiment_directory(config)
        found = None
        if launch.restart_count:
            found = state.find_job(experiment, state.job_name(launch))
        if found is None and asked:
            return state.find_run(experiment, host_can)
        if found is None:
            print(f"restart {launch.restart_count}: this job has no folder in {experiment} yet")
        return found

    run.found, stopped = main_rank.on_main(lambda: (found := find(), _has_stopped(found)))
    if stopped and launch.restart_count:
        _say("this job has stopped on request (requeue marker): not started again by torchrun")
        group.leave()
        raise Stopped()
    return run.found is not None and run.found.kind == "host"


def _has_stopped(found: state.Found | None) -> bool:
    return found is not None and (found.directory / state.REQUEUE_NAME).exists()


def saved_state(run: _run.Run) -> dict[str, Any] | None:
    """Collective, the first time: the state that the run goes on from, or None."""
    if run.found is None or run.found.kind != "state":
        return None
    if run.saved is None:
        box: dict[str, Any] = {}

        def read() -> None:
            box["state"], notes = state.read(run.found.directory)
            for note in notes:
                print(f"warning: {note}", file=sys.stderr)

        main_rank.on_main(read)
        run.saved = group.broadcast_nest(box.get("state"))
    return run.saved


def restored(name: str, default: Any) -> Any:
    """Collective: the value that the host's variable `name` had when the run was saved, or
    `default`. The name is remembered, so that its value is saved from now on.

    A dictionary gets the saved entries over its own.
    """
    run = _run.current()
    if run is None:
        return default
    run.best_names.append(name)
    saved = saved_state(run)
    if saved is None or name not in saved["best"]:
        return default
    value = saved["best"][name]
    if isinstance(default, dict) and isinstance(value, dict):
        return type(default)({**default, **value})
    return value


class Keeper:
    """Restores and saves the state of one run."""

    def __init__(self, run: _run.Run, model: Any) -> None:
        self.run, self.model = run, model
        self.finished = 0
        run.part = metrics.EpochPart(self.after_step)
        self.best: dict[str, Any] = {}

    def restore(self) -> int | None:
        """Collective: puts back the saved state, if the run goes on from one; the last epoch that
        it has finished, else None. The main rank says what goes on, and what has changed.
        """
        run = self.run
        saved = saved_state(run)
        if run.found is not None and run.found.kind != "host" and group.is_main():
            main_epoch = 0 if saved is None else saved["epoch"]
            _trim_history(run.found.directory, main_epoch)
            (run.found.directory / state.REQUEUE_NAME).unlink(missing_ok=True)
        if saved is None:
            if run.found is not None and run.found.kind == "begun":
                _say(f"no epoch was finished: training begins anew in {run.found.directory}")
            return None
        run.saved = None  # frees the memory once the tensors are in the model
        state.restore_model(self.model, saved["model"])
        parts, rank, epoch = saved["ranks"], group.rank(), saved["epoch"]
        own = parts[rank] if rank < len(parts) else None
        data = self._restore_data(saved, own)
        if saved["inside"] is not None:
            self._restore_part(saved, own)
        self.best = saved["best"]
        for line in self._changes(saved, data):
            _say(line)
        if own is None:
            _run.seed_streams(run.seed, rank, epoch)
        else:
            random_streams.restore(own["random"])
        self.finished = epoch
        return epoch

    def _restore_data(self, saved: dict[str, Any], own: dict[str, Any] | None) -> str:
        loader = self.run.loaders.get("train")
        if not hasattr(loader, "go_to"):
            return "data: the host's own pipeline begins anew (its place cannot be found again)"
        # Places are of all ranks together, so a rank that did not exist takes the main rank's.
        place = (own or saved["ranks"][0])["data"]
        return loader.go_to(place, saved["world_size"], saved["epoch"])

    def _restore_part(self, saved: dict[str, Any], own: dict[str, Any] | None) -> None:
        """The steps of an epoch that the run was stopped in, and their logs. On another number of
        ranks the main rank takes all of the logs, where they are sums.
        """
        part, parts = self.run.part, saved["ranks"]
        part.steps = saved["inside"]["steps"]
        if saved["world_size"] == self.run.plan.world_size:
            part.logs.samples, part.logs.totals = own["samples"], own["totals"]
            part.step_logs = own["step_logs"]
        elif group.is_main() and group.world_size() > 1:
            for other in parts:
                part.logs.samples += other["samples"]
                for key, (value, samples) in other["totals"].items():
                    total = part.logs.totals.setdefault(key, [0.0, 0])
                    total[0] += value
                    total[1] += samples

    def _changes(self, saved: dict[str, Any], data: str) -> Iterable[str]:
        made = self.run.plan
        yield (
            f"resuming training from epoch {saved['epoch'] + 1}{_inside(saved)} "
            f"(save {saved['save_id'][:8]} in {self.run.found.directory})"
        )
        yield data
        old, new = saved["world_size"], made.world_size
        if old != new:
            ranks = (
                f"ranks {old} to {new - 1} begin random streams of their own" if new > old else ""
            )
            yield f"world size: {old} -> {new}" + (f"; {ranks}" if ranks else "")
        if saved["samples_per_step"] != made.samples_per_step:
            yield f"samples per step: {saved['samples_per_step']} -> {made.samples_per_step}"
        rates = [
            entry["lr"]
            for _, optimizer in host_algo.named_optimizers(self.model)
            for entry in optimizer.param_groups
        ]
        yield f"learning rate: {', '.join(f'{rate:g}' for rate in rates)}, as saved"
        configured = [list(pair) for pair in self.run.learning_rates]
        if configured != saved["learning_rates"]:
            yield (
                "learning rate: the present config and ranks would give "
                f"{', '.join(f'{after:g}' for _, after in configured)}; not applied, since a "
                "resumed learning rate is never changed silently"
            )
        if saved["export"] != state.export_digest(self.run.found.directory):
            yield (
                f"note: last.pth was not written together with save {saved['save_id'][:8]} (the "
                "run ended between the two, or the file was changed); the state alone is used"
            )

    def epoch_end(self, epoch: Any) -> None:
        """Collective: saves the state, and stops if a rank was asked to. A save that fails is a
        warning, and tried again at the next epoch's end; what was saved before stays.
        """
        self.finished = int(epoch)
        self._save(None)
        if self.run.stopper.agreed_at_last():
            self._stop(f"after epoch {epoch}")

    def after_step(self) -> None:
        """Collective: after a training step, stops if a rank was asked to, with the place inside
        the epoch in the state.
        """
        if self.run.stopper.agreed():
            part = self.run.part
            inside = {"epoch": part.epoch, "steps": part.steps}
            self._save(inside)
            self._stop(f"in epoch {part.epoch} after {part.steps} steps of it")

    def _stop(self, where: str) -> None:
        run = self.run
        if group.is_main() and run.directory is not None:
            heard = run.stopper.heard or "a signal to another rank"
            content = {"stopped": where, "signal": heard, "saved": run.record.get("saved")}
            try:
                state.write_requeue(run.directory, content)
            except OSError as error:
                print(f"warning: no requeue marker in {run.directory}: {error}", file=sys.stderr)
            print(f"stopped {where} ({heard}); it goes on with ddp.resume=true")
        group.barrier()  # nobody leaves before the file is whole
        group.leave()
        raise Stopped()

    def _save(self, inside: dict[str, Any] | None) -> None:
        part = self.run.part
        loader = self.run.loaders.get("train")
        position = loader.position() if hasattr(loader, "position") else None
        own = {"random": random_streams.capture(), "data": position}
        if inside is not None:
            own.update(samples=part.logs.samples, totals=part.logs.totals)
            own.update(step_logs=part.step_logs)
        parts = group.gather_objects(state.plain(own))
        best = self._best_values()

        def write() -> bool:
            if self.run.directory is None:
                return False
            try:
                content = self._content(inside, parts, best)
                improved = best != self.best and bool(best)
                state.write(self.run.directory, content, improved)
                self.run.note_save(content["save_id"], self.finished, content["export"])
            except (CheckpointError, OSError) as error:
                print(f"warning: {error} The next try is at the next epoch's end.", file=sys.stderr)
                return False
            return True

        if main_rank.on_main(write):
            self.best = best

    def _content(self, inside: Any, parts: list, best: dict[str, Any]) -> dict[str, Any]:
        run = self.run
        return {
            "save_id": uuid.uuid4().hex,
            "version": robomimic_ddp.__version__,
            "epoch": self.finished,
            "inside": inside,
            "steps": host_algo.steps(self.model),
            "world_size": run.plan.world_size,
            "batch_per_rank": run.plan.batch_per_rank,
            "samples_per_step": run.plan.samples_per_step,
            "learning_rates": [list(pair) for pair in run.learning_rates],
            "options": asdict(run.options.values),
            "best": best,
            "export": state.export_digest(run.directory),
            "model": state.capture_model(self.model),
            "ranks": parts,
        }

    def _best_values(self) -> dict[str, Any]:
        """The present values of the host's variables that `restored` was asked for, read where they
        live: among the variables of the function that holds the epoch loop.
        """
        names = set(self.run.best_names)
        frame = sys._getframe(1)
        while names and frame is not None:
            code = frame.f_code
            if names <= {*code.co_varnames, *code.co_cellvars}:
                held = frame.f_locals
                return state.plain({name: held[name] for name in sorted(names) if name in held})
            frame = frame.f_back
        return {}


def _inside(saved: dict[str, Any]) -> str:
    inside = saved["inside"]
    done = "" if inside is None else f", after {inside['steps']} steps of it"
    return f"{done}, step {saved['steps']} of the run"


def _trim_history(directory: Path, last_epoch: int) -> None:
    """Removes the lines of epochs that are trained again, and a last line cut off by a crash."""
    path = directory / history.FILE_NAME
    if not path.is_file():
        return
    kept = [record for record in history.read(directory) if (record["epoch"] or 0) <= last_epoch]
    with main_rank.atomic_open(path, encoding="utf-8") as file:
        file.writelines(json.dumps(record, sort_keys=True) + "\n" for record in kept)


def _say(line: str) -> None:
    if group.is_main():
        print(line)
