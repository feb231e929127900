"""Embeddings of instructions: ranks share the work, a cache remembers it; by a made-up encoder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import tqdm

from robomimic_ddp.data.language import embeddings as language
from robomimic_ddp.distributed import group
from robomimic_ddp.errors import DataError

TEXTS = [f"do task {number}" for number in range(7)]


class Letters:
    """Encodes a text as its length and its last letter."""

    width = 2
    instances: list[Letters] = []

    def __init__(self, name, key, device):
        self.name, self.arguments = name, (name, key, device)
        self.encoded, self.fingerprints, self.unloaded = [], 0, 0
        self.instances.append(self)

    def fingerprint(self):
        self.fingerprints += 1
        return f"{self.name}-1"

    def encode(self, text):
        self.encoded.append(text)
        return np.array([len(text), ord(text[-1])], np.float64)

    def unload(self):
        self.unloaded += 1


@pytest.fixture(autouse=True)
def encoders(monkeypatch):
    """The encoders that were made, in order."""
    monkeypatch.setattr(language, "Encoder", Letters)
    monkeypatch.setattr(Letters, "instances", [])
    return Letters.instances


def test_a_text_is_encoded_once_and_found_in_the_cache(encoders, tmp_path, caplog):
    caplog.set_level("INFO")
    first = language.make_embeddings("key", "tiny", ["b?", "a", "b?"], tmp_path)
    language.make_embeddings("key", "tiny", ["a", "c"], tmp_path)
    again = language.make_embeddings("key", "tiny", ["b?", "c"], tmp_path, "cuda")
    assert [encoder.encoded for encoder in encoders] == [["a", "b?"], ["c"], []]
    assert [encoder.unloaded for encoder in encoders] == [1, 1, 0]
    assert encoders[0].arguments == ("tiny", "key", "cpu")
    assert encoders[2].arguments == ("tiny", "key", "cuda")
    assert caplog.record_tuples == [
        (language.__name__, 20, f"embedding {count} instructions with tiny") for count in (2, 1)
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["language-tiny-1.npz"]
    assert (first.key, first.width) == ("key", 2)
    rows = first.of(["b?", "a", "b?"], 3)
    assert rows.dtype == torch.float32
    assert rows.tolist() == [[[2, ord("?")]] * 3, [[1, ord("a")]] * 3, [[2, ord("?")]] * 3]
    assert again.of(["b?", "c"], 1).tolist() == [[[2, ord("?")]], [[1, ord("c")]]]
    with pytest.raises(DataError, match="'a' is not in the dataset's index: .* Delete the"):
        again.of(["c", "a"], 1)


def test_a_cache_that_cannot_be_used_is_a_warning(tmp_path, caplog):
    (tmp_path / "file").touch()
    embeddings = language.make_embeddings("key", "tiny", ["a"], tmp_path / "file")
    assert embeddings.of(["a"], 1).tolist() == [[[1, ord("a")]]]
    assert {message.split("/")[0] for message in caplog.messages} == {
        "the cached embeddings ",
        "the embeddings ",
    }


def on_a_rank(folder):
    """What a rank encodes, its bars of progress, and the embeddings that it gets."""
    bars, replaced = [], (language.Encoder, tqdm.tqdm)
    language.Encoder = Letters
    tqdm.tqdm = lambda texts, *which, **how: bars.append((*which, how)) or texts
    Letters.instances.clear()
    try:
        # The second time each rank has a separate cache folder: the main rank's counts.
        for cache in ("cache", str(group.rank()), "0"):
            embeddings = language.make_embeddings("key", "tiny", TEXTS, Path(folder) / cache)
    finally:
        language.Encoder, tqdm.tqdm = replaced
    encoded = [encoder.encoded for encoder in Letters.instances]
    fingerprints = [encoder.fingerprints for encoder in Letters.instances]
    return encoded, fingerprints, bars, embeddings.of(TEXTS, 1).tolist()


def test_ranks_share_the_work_and_get_the_same(ranks, tmp_path):
    shown = [("instructions", {"disable": None})] * 2  # on a terminal
    rows = [[[len(text), ord(text[-1])]] for text in TEXTS]
    assert ranks.run(on_a_rank, str(tmp_path)) == [
        ([TEXTS[::2], TEXTS[::2], []], [1, 1, 1], shown, rows),
        (
            [TEXTS[1::2], TEXTS[1::2], []],
            [0, 0, 0],
            [("instructions", {"disable": True})] * 2,
            rows,
        ),
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "cache"]
