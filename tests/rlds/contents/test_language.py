"""Instructions as embeddings, by a tiny DistilBERT that is made here."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robomimic_ddp.data.language import embeddings as language
from robomimic_ddp.data.rlds import host_datasets
from robomimic_ddp.data.rlds.loaders.make import make_loader
from robomimic_ddp.errors import DataError
from tests.rlds.conftest import ACTIONS, CAMERAS, KEPT, STATES
from tests.rlds.language_model import WIDTH, WORDS, make_model

transformers = pytest.importorskip("transformers")
NEEDS_CLIP_TEXT_MODEL = pytest.mark.skipif(
    "clip_text_model" not in transformers.CONFIG_MAPPING,
    reason="this transformers finds no CLIP that was saved without its vision part",
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("language") / "Tiny Model")


def by_hand(model, text):
    """DROID's encoding of one text, in its own words."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    lang_model = transformers.AutoModel.from_pretrained(model).eval()
    with torch.no_grad():
        outputs = lang_model(**tokenizer(text, return_tensors="pt"))
    return outputs.last_hidden_state.sum(1).squeeze().numpy()


def table(embeddings):
    """All embeddings, in the order of their texts."""
    return torch.stack(list(embeddings._rows.values()))


@pytest.fixture
def counted(monkeypatch):
    """The texts that were encoded, and the parts of models that were loaded."""
    encoded, loaded = [], []
    encode, get = language.Encoder.encode, language.Encoder._get
    monkeypatch.setattr(
        language.Encoder, "encode", lambda self, text: encoded.append(text) or encode(self, text)
    )
    monkeypatch.setattr(
        language.Encoder, "_get", lambda self, kind: loaded.append(kind) or get(self, kind)
    )
    return encoded, loaded


@pytest.fixture
def load_with(make_config):
    """`load_with(model, cache)`: the train dataset with `lang_emb` beside a camera and a state."""

    def make(model, cache, key="lang_emb", **changes):
        changes = {"cameras": CAMERAS[:1], "states": [STATES[0], key], **changes}
        config = make_config(data_cache_dir=str(cache), **changes)
        return host_datasets.datasets_from_config(
            config, config.all_obs_keys, language_model=model
        )[0]

    return make


def test_batches_hold_each_instructions_embedding(load_with, model, tmp_path, counted):
    key = "lang_fixed/language_distilbert"  # the other tests have lang_emb
    dataset = load_with(model, tmp_path, key)
    encoded, loaded = counted
    assert sorted(encoded) == sorted(f"do task {number}" for number in KEPT)
    truth = {text: by_hand(model, text) for text in encoded}
    seen = set()
    for batch in make_loader(dataset, 4, 0, 1, 0):
        rows = batch["obs"][key]
        assert rows.shape == (len(batch["language"]), 2, WIDTH) and rows.dtype == torch.float32
        for row, text in zip(rows, batch["language"]):
            assert np.array_equal(row[1].numpy(), truth[text]) and torch.equal(row[0], row[1])
            seen.add(text)
    assert len(seen) > 3 and len({row.tobytes() for row in truth.values()}) == len(truth)
    assert len(encoded) == len(KEPT), "batches encode nothing"
    assert loaded.count("AutoModel") == 1
    stats = dataset.get_obs_normalization_stats()[key]
    assert (stats["offset"] == 0).all() and (stats["scale"] == 1).all()


def test_embeddings_are_pinned_as_the_batch(load_with, model, tmp_path, monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned.append(id(self)) or self)
    dataset = load_with(model, tmp_path)
    for pin_memory in (False, True):
        batch = next(iter(make_loader(dataset, 4, 0, 1, 0, pin_memory=pin_memory)))
        assert (id(batch["obs"]["lang_emb"]) in pinned) == pin_memory


def test_a_second_run_needs_no_model(load_with, model, tmp_path, counted):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = next(iter(make_loader(load_with(model, tmp_path), 4, 0, 1, 0)))
    assert torch.equal(torch.get_rng_state(), before), "training's numbers are left alone"
    encoded, loaded = counted
    encoded.clear(), loaded.clear()
    again = next(iter(make_loader(load_with(model, tmp_path), 4, 0, 1, 0)))
    assert encoded == [] and loaded == ["AutoConfig"]
    assert torch.equal(first["obs"]["lang_emb"], again["obs"]["lang_emb"])
    dataset = load_with(model, tmp_path, skip_unlabeled=False)
    assert encoded == [""], "only what is new"
    assert len(dataset.embeddings[0]._rows) == len(KEPT) + 1
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("language-")] and not list(
        tmp_path.glob("*.part")
    )


def test_another_model_and_a_damaged_cache_are_encoded_again(load_with, model, tmp_path, counted):
    one = load_with(model, tmp_path).embeddings[0]
    other = load_with(make_model(tmp_path / "other", seed=1), tmp_path).embeddings[0]
    assert not torch.equal(table(one), table(other))
    assert len(counted[0]) == 2 * len(KEPT)
    for file in tmp_path.glob("language-*.npz"):
        file.write_bytes(file.read_bytes()[:100])
    assert torch.equal(table(load_with(model, tmp_path).embeddings[0]), table(one))


def test_an_instruction_that_the_index_lacks_is_one_error(load_with, model, tmp_path):
    dataset = load_with(model, tmp_path)
    dataset.embeddings = [language.Embeddings("lang_emb", WIDTH, {})]
    with pytest.raises(DataError, match="is not in the dataset's index: .* Delete the dataset's"):
        next(iter(make_loader(dataset, 4, 0, 1, 0)))


def test_a_text_that_is_longer_than_the_model_allows_is_cut(model):
    encoder = language.Encoder(model, "lang_emb")
    longest = " ".join(["do"] * 510)  # 512 with the marks at both ends
    assert np.array_equal(encoder.encode(longest + " task task"), encoder.encode(longest))


def save_clip(folder, whole):
    """A CLIP with one layer and random weights: all of it, as hosts name it, or its text part."""
    text = {
        "vocab_size": len(WORDS), "hidden_size": 12, "intermediate_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 2, "projection_dim": WIDTH,
        "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "max_position_embeddings": 25,
    }  # fmt: skip
    if not whole:
        config = transformers.CLIPTextConfig(**text)
        transformers.CLIPTextModelWithProjection(config).save_pretrained(folder)
        return
    vision = {
        "hidden_size": 12, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "image_size": 8, "patch_size": 4, "projection_dim": WIDTH,
    }  # fmt: skip
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=WIDTH)
    transformers.CLIPModel(config).save_pretrained(folder)


@pytest.mark.parametrize(
    "whole", [True, pytest.param(False, marks=NEEDS_CLIP_TEXT_MODEL)], ids=["whole", "text"]
)
def test_a_clip_model_gives_its_own_embedding(tmp_path, whole):
    """As the host's LangUtils: text_embeds of 25 padded tokens."""
    save_clip(tmp_path / "clip", whole)
    model = transformers.CLIPTextModelWithProjection.from_pretrained(tmp_path / "clip").eval()
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    tokenizer = transformers.BertTokenizerFast(str(tmp_path / "vocab.txt"))
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    tokenizer.save_pretrained(tmp_path / "clip")
    encoder = language.Encoder(str(tmp_path / "clip"), "lang_emb")
    assert encoder.width == WIDTH
    tokens = tokenizer(
        "do task 7", max_length=25, padding="max_length", return_tensors="pt",
        return_token_type_ids=False,
    )  # fmt: skip
    with torch.no_grad():
        truth = model(**tokens)["text_embeds"][0]
    assert np.allclose(encoder.encode("do task 7"), truth.numpy(), atol=1e-6)


def test_shapes_are_reported_without_loading_the_model(make_config, model, counted, monkeypatch):
    ObsUtils = pytest.importorskip("robomimic.utils.obs_utils")
    config = make_config(cameras=[], states=[STATES[0], "lang_emb"])
    ObsUtils.initialize_obs_utils_with_config(config)
    (entry,) = host_datasets.dataset_configs(config)
    monkeypatch.setitem(host_datasets.MODELS, "lang_emb", model)
    for named in ([model], []):  # else the key's usual one
        keys = config.all_obs_keys
        shapes = host_datasets.shape_metadata(entry, list(ACTIONS), keys, *named)["all_shapes"]
        assert list(shapes["lang_emb"]) == [WIDTH]
    assert counted[1] == ["AutoConfig"] * 2


def test_shapes_are_of_all_keys_of_the_schema_where_none_are_named(make_config):
    ObsUtils = pytest.importorskip("robomimic.utils.obs_utils")
    config = make_config(cameras=CAMERAS, states=STATES)
    ObsUtils.initialize_obs_utils_with_config(config)
    (entry,) = host_datasets.dataset_configs(config)
    shapes = host_datasets.shape_metadata(entry, list(ACTIONS))
    keys = sorted(CAMERAS + STATES)
    assert sorted(shapes["all_obs_keys"]) == sorted(shapes["all_shapes"]) == keys


@pytest.mark.bad_input
def test_a_model_that_is_not_there_is_one_clear_error(load_with, tmp_path):
    with pytest.raises(DataError) as caught:
        load_with(str(tmp_path / "nothing"), tmp_path)
    for part in (
        "nothing", "could not be loaded", "snapshot_download", "ddp.language_model=",
        "get('distilbert-base-uncased', ",
    ):  # fmt: skip
        assert part in str(caught.value)


def missing_on_a_rank(folder):
    """On a rank: the error's text, where one rank alone lacks the model."""
    from pathlib import Path

    from robomimic_ddp.distributed import group

    model = Path(folder) / ("there" if group.rank() == 0 else "not there")
    with pytest.raises(DataError) as caught:
        language.make_embeddings("lang_emb", str(model), ["do task 1"], Path(folder) / "cache")
    return str(caught.value)


@pytest.mark.bad_input
def test_a_rank_without_the_model_stops_all(ranks, tmp_path):
    make_model(tmp_path / "there")
    one, two = ranks.run(missing_on_a_rank, str(tmp_path))
    assert one == two and "not there" in one


@pytest.fixture
def silent(make_config, tmp_path):
    """`silent(states)`: the config of data without instructions."""
    path = tmp_path / "silent.yaml"
    path.write_text(
        "states: {pose: observation.cartesian_position}\n"
        "actions: {move: {feature: action_dict.cartesian_position, columns: [0, 3]}}\n"
    )
    return lambda states: make_config(
        cameras=[], states=states, rlds_schema=str(path), action_keys=["move"],
        action_config={"move": {"normalization": "min_max"}},
    )  # fmt: skip


def test_a_data_set_without_instructions_has_empty_ones(silent):
    train, _ = host_datasets.datasets_from_config(silent(["pose"]), ["pose"])
    assert next(iter(make_loader(train, 4, 0, 1, 0)))["language"] == [""] * 4


@pytest.mark.bad_input
def test_a_data_set_without_instructions_has_no_embedding(silent, model):
    config = silent(["pose", "lang_emb"])
    with pytest.raises(DataError, match="has no instructions.*'lang_emb'"):
        host_datasets.datasets_from_config(config, config.all_obs_keys, language_model=model)
