"""A tiny DistilBERT with random weights, as instructions are embedded by."""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")
WIDTH = 8
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "do", "task", *map(str, range(20))]


def make_model(folder, seed=0):
    """A DistilBERT with one layer, random weights and a vocabulary of some words."""
    folder.mkdir(parents=True)
    torch.manual_seed(seed)
    config = transformers.DistilBertConfig(
        vocab_size=len(WORDS), dim=WIDTH, n_layers=1, n_heads=2, hidden_dim=16
    )
    transformers.DistilBertModel(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    transformers.DistilBertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return str(folder)
