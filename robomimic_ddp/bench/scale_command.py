"""The command `robomimic-ddp bench scale`."""

from __future__ import annotations

import argparse
from dataclasses import replace

from robomimic_ddp.bench import links, model, scale, scale_plot, scale_rows, start_up
from robomimic_ddp.bench.model import Cluster, Link, Step
from robomimic_ddp.bench.output import tell, write_rows
from robomimic_ddp.bench.team import Job
from robomimic_ddp.errors import EXIT_DONE, UsageError

QUICK, LONG = 5, 20
"""Rounds."""
QUICK_DIMS = "64,128"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `robomimic-ddp bench scale`."""
    add = parser.add_argument
    add("--quick", action="store_true", help=f"{QUICK} rounds of a small net, 2 ranks to check")
    add("--json", metavar="FILE", help="also write the rows as JSON")
    add("--plot", metavar="FILE.png", help="also draw efficiency over the number of GPUs")
    add("--rounds", type=int, help=f"steps measured of each kind; {LONG}")
    add("--batch", type=int, default=16, help="samples on each GPU; default 16")
    add("--total", type=int, default=1024, help="samples over all GPUs (strong); default 1024")
    add("--threads", type=int, default=1, help="of each process; default 1")
    add("--down-dims", metavar="N,N", default="", help="channels of the net; default the host's")
    add("--comm", choices=("none", "fp16", "bf16", "powersgd"), default="none", help="ddp.comm")
    add("--bucket-mb", type=float, default=25.0, help="ddp.bucket_mb; default 25")
    add("--algorithm", choices=model.ALGORITHMS, default="best", help="of all-reduces")
    add("--overlap", type=float, default=1.0, help="share of backward in which sending is free")
    add("--check", nargs="*", type=int, metavar="RANKS", help="gloo ranks; default 2 3 4")
    given = parser.add_argument_group("a GPU's own figures, in place of what is measured here")
    add = given.add_argument
    add("--step-seconds", type=float, help="a step's computation, with --batch samples")
    add("--parameters", type=float, help="numbers whose gradients are sent, such as 67e6")
    add("--backward-share", type=float, default=0.55, help="of --step-seconds; default 0.55")
    add("--fixed-share", type=float, default=0.15, help="that no batch shortens; default 0.15")
    add("--bandwidth", type=float, help="GB/s of a direction, of one link that joins all GPUs")
    add("--latency", type=float, help="us of a message, over that link")
    parser.add_argument(
        "--start-up",
        action="store_true",
        help=f"only what plans, samplers, RLDS, verify and resume take at {start_up.WORLDS[-1]}",
    )


def run(args: argparse.Namespace) -> int:
    """Measures, prints assumptions and tables. Raises UsageError and ConfigError."""
    _require_sensible(args)
    if args.start_up:
        found = start_up.rows()
        print("\n".join(start_up.lines(found)))
        write_rows(args.json, found)
        return EXIT_DONE
    step, origin, checked = _step(args)
    question = scale_rows.Question(
        step, args.batch, args.total, _clusters(args), args.algorithm, origin, args.comm
    )
    modelled = scale_rows.rows(question)
    print("\n".join(scale_rows.assumptions(question)))
    print()
    print("\n".join(scale_rows.table(question, modelled)))
    print()
    print("\n".join(scale_rows.check_lines(checked)) or "The model was not checked in this run.")
    write_rows(args.json, modelled + scale_rows.checked_rows(checked))
    if args.plot:
        names = {key: cluster.name for key, cluster in question.clusters.items()}
        note = (
            f"a step computes {1e3 * step.compute(args.batch):.4g} ms with {args.batch} samples "
            f"({origin.split(',')[0]}), {step.size / 1e6:.4g} MB of gradients; links assumed"
        )
        scale_plot.plot(modelled, names, note, args.plot)
    return EXIT_DONE


def _step(args: argparse.Namespace) -> tuple[Step, str, list[scale.Checked]]:
    """The step, where its times are from, and the check that goes with measuring."""
    bucket = args.bucket_mb * 2**20
    if args.step_seconds is not None:
        from robomimic_ddp.step.communication import BYTES

        size = args.parameters * BYTES[args.comm]
        fixed = args.step_seconds * args.fixed_share
        passes = args.step_seconds - fixed
        share = args.backward_share * args.step_seconds / passes
        step = Step(passes / args.batch, fixed, share, size, bucket, args.overlap)
        return step, "given, not measured", []
    rounds = args.rounds or (QUICK if args.quick else LONG)
    dims = args.down_dims or (QUICK_DIMS if args.quick else "")
    job = Job(args.batch, args.threads, 1, tuple(map(int, filter(None, dims.split(",")))))
    tell("one process ...")
    compute = scale.measure_compute(job, rounds)
    step = compute.step(args.comm, bucket, args.overlap)
    worlds = ([2] if args.quick else [2, 3, 4]) if args.check is None else args.check
    # The ranks of the check send in fp32, whatever is asked of the model.
    whole = replace(step, size=compute.sent["none"])
    checked = scale.check(job, worlds, rounds, whole, tell)
    origin = (
        f"measured on this CPU with {args.threads} thread(s), {compute.parameters / 1e6:.1f} M "
        "parameters; a GPU computes far quicker, and has as much to send: give --step-seconds"
    )
    if args.parameters is not None:
        step = replace(step, size=step.size * args.parameters / compute.parameters)
    return step, origin, checked


def _clusters(args: argparse.Namespace) -> dict[str, Cluster]:
    if args.bandwidth is None and args.latency is None:
        return links.CLUSTERS
    found = {}
    for name, link in links.LINKS.items() if args.bandwidth is None else (("given", None),):
        bandwidth = link.bandwidth if link else args.bandwidth * 1e9
        latency = args.latency * 1e-6 if args.latency is not None else links.INFINIBAND.latency
        label = f"{link.name} with the latency given" if link else "the link given"
        given = Link(label, latency, bandwidth, "given")
        found[name] = Cluster(label, given, given)
    return found


def _require_sensible(args: argparse.Namespace) -> None:
    positive = ("rounds", "batch", "total", "threads", "bucket_mb", "step_seconds", "parameters")
    for name in (*positive, "bandwidth"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            raise UsageError(f"--{name.replace('_', '-')} {value}: expected more than 0.")
    for name in ("overlap", "backward_share", "fixed_share"):
        if not 0 <= getattr(args, name) <= 1:
            raise UsageError(
                f"--{name.replace('_', '-')} {getattr(args, name)}: expected a share, 0 to 1."
            )
    if args.latency is not None and args.latency < 0:
        raise UsageError(f"--latency {args.latency}: expected 0 or more.")
    if args.backward_share + args.fixed_share > 1 or args.fixed_share == 1:
        raise UsageError(
            f"--backward-share {args.backward_share} and --fixed-share {args.fixed_share}: both "
            "are shares of one step, and together at most 1."
        )
    if not all(part.isdecimal() and int(part) for part in args.down_dims.split(",") if part):
        raise UsageError(f"--down-dims {args.down_dims}: expected whole numbers, such as 64,128.")
    if args.check and min(args.check) < 2:
        raise UsageError(f"--check {min(args.check)}: expected 2 ranks or more.")
    if args.step_seconds is not None and args.parameters is None:
        raise UsageError("--step-seconds without --parameters: how much is sent is not known.")
    if args.step_seconds is not None and args.comm == "powersgd":
        raise UsageError(
            "--comm powersgd with --step-seconds: what it sends depends on the net's shapes, which "
            "are only known where the net is measured here. Give another --comm."
        )
