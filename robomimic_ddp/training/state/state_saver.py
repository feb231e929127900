"""Saves the state of a run at epochs' ends and where it is stopped, and restores it."""

from __future__ import annotations

import math
import sys
import time
import uuid
from dataclasses import asdict
from functools import partial
from typing import Any

import robomimic_ddp
from robomimic_ddp import checkpoint
from robomimic_ddp.distributed import group, host_algo, host_objects, main_rank, watchdog
from robomimic_ddp.errors import CheckpointError, RobomimicDDPError, Stopped
from robomimic_ddp.monitoring import step_logs
from robomimic_ddp.monitoring.records import run_files
from robomimic_ddp.terminal import print_clean, warn
from robomimic_ddp.training import run as _run
from robomimic_ddp.training.state import resume, state_components
from robomimic_ddp.training.state import run_fingerprint as identity

_SILENT_SECONDS = 5.0
"""How long a run waits for its last files before it says so."""


class StateSaver:
    """Restores and saves the state of one run: its `components`, and what describes it."""

    def __init__(self, run: _run.Run, model: Any) -> None:
        self.run, self.model = run, model
        self.finished = 0
        self.is_saved = True
        """Whether a state has the last finished epoch."""
        self.next_save = -math.inf
        """Main rank: when the next state is due (`time.monotonic`)."""
        self.better_is_lost = False
        """Main rank: whether the state of a better best could not be written."""
        self.error: BaseException | None = None
        """Main rank: of the thread that writes, and not of the disk: a fault of ours."""
        self.warned_of_copies = False
        run.progress.part = step_logs.EpochPart(self.after_step, self.after_training)
        self.components = [kind(run, model) for kind in state_components.KINDS]
        run.stopper.on_request = self.leave_marker
        run.stopper.on_lost_launcher = partial(resume.print_resume_command, run)
        self.best: dict[str, Any] = {}
        self.defines: dict[str, Any] = {}
        """Main rank: what defines the run (`identity.of`)."""

    def restore(self) -> int | None:
        """Collective: restore the saved state, if the run resumes from one, and return the last
        epoch that it has finished, else None. The main rank prints what is resumed, and what has
        changed.

        Raises CheckpointError, and leaves config.json as it was, where the run is another one.
        """
        saved = resume.saved_state(self.run)
        items = identity.items_of(self.run)
        try:
            changes = main_rank.on_main(self._compare, saved, items)
            return self._restore(saved, changes)
        except RobomimicDDPError:
            if group.is_main():
                resume.put_config_back(self.run)
            raise

    def _compare(self, saved: dict[str, Any] | None, items: dict[str, Any] | None) -> list[str]:
        """Main rank: return a line for each difference between the saved run and this one."""
        self.defines = identity.of(self.run, items)
        if saved is None:
            return []
        directory = self.run.resume.source.directory
        with checkpoint.restoring("defines", directory):
            differences = list(identity.differences(saved, self.defines, self.run))
        wrong = [difference.text for difference in differences if difference.wrong]
        if wrong:
            raise identity.another_run(directory, wrong)
        return [difference.text for difference in differences]

    def _restore(self, saved: dict[str, Any] | None, changes: list[str]) -> int | None:
        """Collective: see `restore`. `changes`: lines for the user."""
        run, resumed = self.run, self.run.resume.source
        if resumed is not None and resumed.kind != "host":
            epoch = 0 if saved is None else saved["epoch"]
            main_rank.on_main(resume.trim_history, resumed.directory, epoch)
        self.best = dict(run.resume.variables)
        if saved is None:
            if resumed is not None and resumed.kind == "begun":
                main_rank.say(f"no epoch was finished: training starts over in {resumed.directory}")
            return None
        run.resume.saved = None  # its memory is free once the components have loaded it
        notes = []
        for component in self.components:
            with checkpoint.restoring(component.name, resumed.directory):
                state = _state_of(component, saved)
                notes.append(component.load_state_dict(state, saved))
        self.best = saved["best"]
        for line in [*resume.changes(run, self.model, saved, filter(None, notes)), *changes]:
            main_rank.say(line)
        self.finished = saved["epoch"]
        return self.finished

    def epoch_end(self, epoch: Any) -> None:
        """Collective: saves the state if it is due, and stops if a rank was asked to. A save that
        fails is a warning, and tried again at the next epoch's end; what was saved before stays.
        """
        self.finished, self.is_saved = int(epoch), False
        where = f"after epoch {epoch}"
        stops = self.run.stopper.agreed_at_last()
        if stops or main_rank.on_main(self._is_due):
            self._save(where)
        self.run.output.writer.begin()
        if stops:
            self._stop(where)

    def _is_due(self) -> bool:
        is_last = self.finished == self.run.progress.last_epoch  # `finish` would need another copy
        return is_last or time.monotonic() >= self.next_save or self._is_better(self._best_values())

    def _is_better(self, best: dict[str, Any]) -> bool:
        return self.better_is_lost or any(best[name] != self.best.get(name) for name in best)

    def finish(self) -> None:
        """Collective, after the last epoch: saves its state, and waits until all is written."""
        if not self.is_saved:
            self._save(f"after epoch {self.finished}")
        watchdog.reached(f"{watchdog.SAVING}the last files")
        main_rank.on_main(self._finish_writing)

    def _finish_writing(self) -> None:
        if not self.run.output.writer.flush(_SILENT_SECONDS):
            print_clean("training has ended; the last files are being written")
            self.run.output.writer.flush()
        if self.run.output.host_files is not None:
            self.run.output.host_files.require_written()

    def after_step(self) -> None:
        """Collective: after a training step, stops if a rank was asked to, with the place inside
        the epoch in the state.
        """
        if self.run.stopper.agreed():
            self._stop_inside()

    def after_training(self) -> None:
        """Collective: the same after an epoch's last step: validation and rollouts cannot stop."""
        if self.run.stopper.agreed_at_last():
            self._stop_inside()

    def _stop_inside(self) -> None:
        part = self.run.progress.part
        where = f"in epoch {part.epoch} after {part.steps} steps of it"
        self._save(where)
        self._stop(where)

    def leave_marker(self) -> None:
        """Main rank, in a thread, before it ends during something long: the run resumes from its
        newest state. Only where this job has saved one: else it could not get further another time
        either.
        """
        record = self.run.output.record
        self.run.output.writer.flush(checkpoint.EXIT_SECONDS)
        if record is not None and record.content.get("saved") is not None:
            self._write_marker(
                f"during epoch {self.finished + 1}; that epoch will be trained again"
            )

    def _stop(self, where: str) -> None:
        if group.is_main() and self.run.output.record is not None:
            self.run.output.writer.flush()
            self._write_marker(where)
        group.barrier()  # nobody leaves before the file is complete
        group.leave()
        raise Stopped()

    def _write_marker(self, where: str) -> None:
        run = self.run
        signal = run.stopper.received or "a signal to another rank"
        content = {
            "stopped": where,
            "signal": signal,
            "restarts": run.resume.restarts,
            "saved": run.output.record.content.get("saved"),
        }
        content["resume"] = resume.command()
        try:
            checkpoint.write_requeue(run.output.directory, content)
        except OSError as error:
            warn(f"no requeue marker in {run.output.directory}: {error}")
        else:
            resume.note_requeue(str(run.output.directory / run_files.REQUEUE))
        print_clean(resume.with_resume_command(f"stopped {where} ({signal})"))

    @host_objects.unchanged()
    def _save(self, where: str) -> None:
        watchdog.reached(f"{watchdog.SAVING}the state {where}")
        states = {component.name: component.state_dict() for component in self.components}
        of_rank = {
            component.name: states.pop(component.name)
            for component in self.components
            if component.per_rank
        }
        states["ranks"] = group.gather_objects(checkpoint.plain(of_rank))
        best = self._best_values()
        main_rank.on_main(self._hand_over, states, best)
        self.best, self.is_saved = best, True

    def _hand_over(self, states: dict[str, Any], best: dict[str, Any]) -> None:
        """Main rank: gives a copy of the state to the thread that writes."""
        record, writer = self.run.output.record, self.run.output.writer
        if record is None:
            return
        if self.error is not None:
            raise self.error
        improved = self._is_better(best)
        # The best state so far is not replaced by a later one that is worse.
        name = checkpoint.BEST if improved else checkpoint.STATE
        snapshot = writer.copy(name, {**self._header(best), **states})
        content = snapshot.content
        # What a file cannot contain is an error at the first save, not a warning at each.
        content["model"] = checkpoint.plain(content["model"])
        self.next_save = time.monotonic() + self.run.options.save_seconds
        self.better_is_lost = False
        write = partial(self._write, content, improved)
        writer.put(name, write, self._failed, snapshot, first=True)

    def _write(self, content: dict[str, Any], improved: bool) -> None:
        """In the thread that writes."""
        record = self.run.output.record
        try:
            troubles = checkpoint.write(record.directory, content, improved)
        except (CheckpointError, OSError) as error:
            self.next_save, self.better_is_lost = -math.inf, self.better_is_lost or improved
            warn(f"{error} The next try is at the next epoch's end.")
            return
        record.add(saved={key: content[key] for key in ("save_id", "epoch")})
        resume.leave_note(record.directory)  # a rank that is killed prints nothing
        for trouble in troubles if not self.warned_of_copies else ():
            warn(f"{trouble}. Training continues.")
        self.warned_of_copies = self.warned_of_copies or bool(troubles)

    def _failed(self, error: BaseException) -> None:
        self.error = error
        warn(
            f"the state was not written: {type(error).__name__}: {error}. Training ends "
            "at the next save."
        )

    def _header(self, best: dict[str, Any]) -> dict[str, Any]:
        """Return what describes the run in a state, in addition to its components."""
        run = self.run
        return {
            "save_id": uuid.uuid4().hex,
            "version": robomimic_ddp.__version__,
            "host": run.host,
            "epoch": self.finished,
            "steps": host_algo.steps(self.model),
            "world_size": run.plan.world_size,
            "batch_per_rank": run.plan.batch_per_rank,
            "samples_per_step": run.plan.samples_per_step,
            "learning_rates": [list(pair) for pair in run.built.learning_rates],
            "options": asdict(run.options),
            "best": best,
            "defines": self.defines,
        }

    def _best_values(self) -> dict[str, Any]:
        """Return the present values of the host's variables that `restored` was asked for, read
        where they live: among the variables of the function with the epoch loop.
        """
        names = set(self.run.resume.variables)
        frame = sys._getframe(1)
        while names and frame is not None:
            code = frame.f_code
            if names <= {*code.co_varnames, *code.co_cellvars}:
                variables = frame.f_locals
                return checkpoint.plain(
                    {name: variables[name] for name in sorted(names) if name in variables}
                )
            frame = frame.f_back
        return {}


def _state_of(component: state_components.Component, saved: dict[str, Any]) -> Any:
    """Return a component's state for this rank; None if the saved run had fewer ranks."""
    if not component.per_rank:
        return saved[component.name]
    rank = group.rank()
    return saved["ranks"][rank][component.name] if rank < len(saved["ranks"]) else None
