"""Configurations that cannot train, some of them through the entry."""

from __future__ import annotations

import json

import pytest

from tests.bad_input.conftest import rows
from tests.bad_input.table import Case, Outcome, Place, dotlist, require_one_clear_error

pytestmark = [pytest.mark.bad_input, pytest.mark.timeout(580)]


def text(content: str | bytes, name: str = "config.json"):
    """A config file with just this content."""

    def make(place: Place) -> list[str]:
        path = place.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return [f"load_from={path}"]

    return make


def without_algorithm(place: Place) -> list[str]:
    path = place.config()
    config = json.loads(path.read_text())
    del config["algo_name"]
    path.write_text(json.dumps(config))
    return [f"load_from={path}"]


def hosts_entry(make):
    """The config file alone, as the host's own --config takes it."""
    return lambda place: [make(place)[0].partition("=")[2]]


FILES = (
    Case("config: a folder", lambda place: [f"load_from={place.folder}"], ("could not be read",)),
    Case("config: not JSON", text("batch_size: 3"), ("could not be read as JSON", "line 1")),
    Case("config: a list", text("[1, 2]"), ("contains a list", "algo_name")),
    Case("config: not UTF-8", text(b'{"algo_name": "\xff"}'), ("could not be read as JSON",)),
    Case(
        "config: a key twice",
        text('{"algo_name": "diffusion_policy", "train": {"seed": 1, "seed": 2}}'),
        ("config.json", "'seed' twice"),
    ),
    Case("config: no algo_name", without_algorithm, ("found no algo_name", "algo_name=NAME")),
    Case(
        "config: algo_name a list in the host's own entry",
        hosts_entry(text('{"algo_name": ["bc"]}')),
        ("found algo_name=['bc']", "expected the name"),
        entry="train",
    ),
    Case(
        "config: unknown algorithm in the host's own entry",
        hosts_entry(text('{"algo_name": "difusion_policy"}')),
        ("--config", "algo_name='difusion_policy'", "Did you mean diffusion_policy?"),
        entry="train",
    ),
    Case("config: nothing at all", lambda place: [], ("found no algo_name", "usage:")),
    Case(
        "config: unknown algorithm",
        dotlist("algo_name=difusion_policy"),
        ("algo_name='difusion_policy'", "none of this host's algorithms: expected one of bc, "),
    ),
    Case(
        "config: algo_name is no text",
        dotlist("algo_name=[bc]"),
        ("algo_name=['bc']", "none of this host's algorithms"),
    ),
)

KEYS = (
    Case(
        "key: unknown in the file",
        dotlist(train={"batchsize": 3}),
        ("unknown key train.batchsize", "train.batch_size"),
    ),
    Case("key: at the top", dotlist("batch_size=16"), ("key batch_size", "train.batch_size")),
    Case(
        "key: the beginning of several",
        dotlist("experiment.save.every=1"),
        ("unknown key experiment.save.every", "experiment.save.every_n"),
    ),
    Case("key: a value for a section", dotlist("train=3"), ("train=3", "is a section")),
    Case("key: a word", dotlist("debug"), ("'debug' is not key=value", "usage:")),
    Case("key: a file", dotlist("cfg.json"), ("Write load_from=cfg.json.",)),
    Case("key: a dash", dotlist("--resume"), ("'--resume' is not key=value", "Write resume=true.")),
    Case("key: a broken list", dotlist("train.x=[1,2"), ("could not be read as key=value",)),
    Case(
        "key: a reference to the environment in a file",
        dotlist(experiment={"name": "${oc.env:HOME}"}),
        ("config.json: experiment.name is '${oc.env:HOME}'", "Write the value itself"),
    ),
    Case(
        "key: a reference to the environment in a list",
        dotlist(train={"data": [{"path": "a${oc.decode:${oc.env:HOME}}"}]}),
        ("train.data is", "computed from this machine"),
    ),
)

VALUES = tuple(
    Case(f"value: {arguments[-1]}", dotlist(*arguments), words)
    for arguments, words in (
        (["train.num_epochs=ten"], ("train.num_epochs='ten'", "whole number")),
        (
            ["train.frame_stack=1"],
            ("train.frame_stack=1", "observation_horizon=2", "2 or more"),
        ),
        (
            ["train.num_data_workers=100000"],
            ("train.num_data_workers=100000", "CPU core"),
        ),
        (["experiment.epoch_every_n_steps=1e30"], ("epoch_every_n_steps=1e+30", "at most 1000000")),
        (["train.seed=4294967296"], ("train.seed=4294967296", "at most 4294967295")),
        (
            ["experiment.validation_epoch_every_n_steps=-1"],
            ("experiment.validation_epoch_every_n_steps=-1", "at least 1"),
        ),
        (["experiment.validate=maybe"], ("experiment.validate='maybe'", "true or false")),
        (["experiment.name=[a]"], ("experiment.name=['a']", "text")),
        (
            ["observation.modalities.obs.low_dim=position"],
            ("observation.modalities.obs.low_dim='position'", "list"),
        ),
        (
            ["observation.modalities.obs.low_dim=[]"],
            ("observation.modalities.obs", "no observation"),
        ),
        (
            ["algo.optim_params.policy.learning_rate.initial=-0.1"],
            ("learning_rate.initial=-0.1", "at least 0"),
        ),
        (
            ["algo.optim_params.policy.learning_rate.initial=.nan"],
            ("learning_rate.initial=nan", "number"),
        ),
        (["resume=perhaps"], ("resume='perhaps'", "true or false or auto")),
        (["debug=3"], ("debug=3", "true or false")),
    )
)

OPTIONS = (
    Case("option: nested", dotlist("ddp.batch.size=3"), ("ddp.batch=", "per_rank | global")),
    Case("option: no section", dotlist("ddp=fast"), ("ddp='fast'", "section of options")),
    Case(
        "option: unknown in the host's own entry",
        hosts_entry(dotlist(ddp={"lr_scalin": "sqrt"})),
        ("ddp.lr_scalin is not an option. Did you mean ddp.lr_scaling?",),
        entry="train",
    ),
    Case(
        "option: unknown to this torch",
        dotlist("ddp.kwargs.bucket_mb=5"),
        ("ddp.kwargs.bucket_mb: DistributedDataParallel of", "Did you mean ddp.kwargs.bucket_cap"),
    ),
)


THROUGH_THE_ENTRY = {
    "key: unknown in the file",
    "key: a word",
    "value: train.num_data_workers=100000",
    "value: algo.optim_params.policy.learning_rate.initial=.nan",
    "option: unknown to this torch",
}
"""The other rows of a dot-list are refused in this process."""
REST = (*KEYS, *VALUES, *OPTIONS)


def is_for_the_entry(case: Case) -> bool:
    return case.entry == "train" or case.name in THROUGH_THE_ENTRY


@rows(*FILES, *filter(is_for_the_entry, REST))
def test_one_clear_error(case: Case, outcome: Outcome) -> None:
    require_one_clear_error(case, outcome)


@rows(*(case for case in REST if not is_for_the_entry(case)))
def test_it_is_refused(case: Case, refusal: str) -> None:
    assert not [word for word in case.words if word not in refusal], refusal
