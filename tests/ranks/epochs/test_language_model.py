"""The stand-in for a language model: when it loads, where, and how often it encodes a text."""

from __future__ import annotations

from collections import OrderedDict

import torch

from robomimic_ddp.data.language.lazy_model import LanguageModel, language_model

VOCABULARY, WIDTH = 50, 4


class Output(OrderedDict):
    """Keys as attributes too, as outputs of transformers have them."""

    def __getattr__(self, name):
        return self[name]


class Encoder(torch.nn.Module):
    """Sums over its row, padding included, as DROID's reading of DistilBERT does."""

    loads = 0

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            self.embedding.weight.copy_(torch.randn(VOCABULARY, WIDTH, generator=generator))
        self.rows = 0

    @classmethod
    def from_pretrained(cls, name, scale=1.0):
        cls.loads += 1
        model = cls().eval()
        model.name, model.scale = name, scale
        return model

    def forward(self, input_ids, attention_mask):
        self.rows += len(input_ids)
        hidden = self.embedding(input_ids) * self.scale
        mean = (hidden * attention_mask[..., None]).mean(1, keepdim=True)
        return Output(last_hidden_state=hidden + mean)


def batch(*texts: str) -> dict[str, torch.Tensor]:
    """Letters as tokens, padded to the longest text."""
    longest = max(map(len, texts))
    ids = [[ord(c) - 96 for c in text] + [0] * (longest - len(text)) for text in texts]
    mask = [[1] * len(text) + [0] * (longest - len(text)) for text in texts]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def fresh() -> LanguageModel:
    Encoder.loads = 0
    return language_model(Encoder.from_pretrained)("tiny", scale=2.0)


def test_nothing_is_loaded_before_the_first_use():
    model = fresh()
    assert model.to(torch.float64).eval() is model
    assert Encoder.loads == 0
    with torch.no_grad():
        output = model(**batch("push"))
    assert Encoder.loads == 1
    assert output.last_hidden_state.dtype == torch.float64, "the move was remembered"
    assert (model.name, model.scale) == ("tiny", 2.0)
    assert Encoder.loads == 1


def test_on_one_rank_every_batch_is_encoded_whole():
    model = fresh()
    with torch.no_grad():
        model(**batch("push", "push")), model(**batch("push", "push"))
    assert model.rows == 4


def _on_a_rank() -> tuple[int, int, int, bool]:
    model, plain = fresh(), Encoder.from_pretrained("tiny", scale=2.0)
    texts = (("push", "pull", "push"), ("pull", "push"), ("push", "go"), ("pushing", "push"))
    same = True
    with torch.no_grad():
        for words in texts:
            ours, theirs = model(**batch(*words)), plain(**batch(*words))
            same &= type(ours) is type(theirs)
            same &= torch.equal(ours.last_hidden_state, theirs.last_hidden_state)
        rows = model.rows
        model.to(torch.float32)
        model(**batch("push"))
    after_move = model.rows
    model(**batch("push"))  # with gradients: the model itself
    return rows, after_move, model.rows, same


def test_on_several_ranks_each_text_is_encoded_once_for_each_padding(ranks):
    # push, pull | nothing new | "go" padded | "pushing", and "push" padded to seven
    for answer in ranks.run(_on_a_rank):
        assert answer == (5, 6, 7, True)


class Tuples(Encoder):
    def forward(self, input_ids, attention_mask):
        return (super().forward(input_ids, attention_mask)["last_hidden_state"],)


def _with_tuples() -> tuple[int, bool]:
    model = language_model(Tuples.from_pretrained)("tiny")
    with torch.no_grad():
        first, second = model(**batch("push", "push")), model(**batch("push", "push"))
    return model.rows, bool(torch.equal(first[0], second[0]))


def test_outputs_without_names_are_the_models_own(ranks):
    assert ranks.run(_with_tuples) == [(5, True), (5, True)]
