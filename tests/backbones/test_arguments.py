import json

import pytest

from fedstats_app.backbones.names import arguments_text, checked_arguments, parse_arguments


def test_reads_what_model_cards_say() -> None:
    text = "img_size=224, init_values=1e-5,num_classes=0,dynamic_img_size=true,mlp_layer=SwiGLUPacked,mlp_ratio=5.3375"
    assert parse_arguments(text) == {
        "dynamic_img_size": True,
        "img_size": 224,
        "init_values": 1e-5,
        "mlp_layer": "SwiGLUPacked",
        "mlp_ratio": 5.3375,
    }
    assert parse_arguments("") == {}
    one, other = (arguments_text(parse_arguments(text)) for text in ("b=true,a=2", "a=2, b=True"))
    assert one == other == "a=2,b=true"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("img_size", "key=value pairs separated by commas, 'img_size' is none"),
        ("img_size=", "key=value pairs"),
        ("a=1,a=2", "'a' stands there twice"),
        ("a=[1]", r"number, true, false or a word as a, '\[1\]' is none"),
        ("a=__import__('os')", "a word as a"),
        ("a=/etc/passwd", "a word as a"),
        ("A=1", "'A' is not one that may be given"),
        ("num_classes=10", "num_classes=0 .*got 10"),
        ("in_chans=1", "in_chans=3 .*got 1"),
    ],
)
def test_anything_else_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_arguments(text)


@pytest.mark.parametrize(
    "key",
    ["checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_strict", "cache_dir", "pruned", "features_only"],
)
def test_what_reads_files_or_chooses_weights_is_no_argument(key: str) -> None:
    with pytest.raises(ValueError, match=f"'{key}' is not one that may be given"):
        parse_arguments(f"{key}=true")
    with pytest.raises(ValueError, match=f"'{key}' is not one that may be given"):
        checked_arguments(json.loads(f'{{"{key}": true}}'))


def test_a_config_may_leave_things_open_and_hold_lists() -> None:
    assert checked_arguments({"act_layer": None, "depths": [2, 2], "global_pool": "", "num_classes": 1000}) == {
        "depths": [2, 2],
        "global_pool": "",
    }
    with pytest.raises(ValueError, match="depths"):
        checked_arguments({"depths": [{"a": 1}]})
