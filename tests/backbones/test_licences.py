from pathlib import Path

import pytest

from fedstats_app.backbones.licences import (
    RANDOM_WEIGHTS,
    UNKNOWN,
    first_known,
    licence_named,
    licence_of_card,
    licence_of_hub_name,
)
from fedstats_app.backbones.registry import load_backbone


@pytest.mark.parametrize(
    ("name", "terms"),
    [
        ("apache-2.0", ()),
        ("MIT", ()),
        ("cc-by-4.0", ()),
        ("cc-by-nc-4.0", ("non-commercial",)),
        ("cc-by-nc-nd-4.0", ("no-derivatives", "non-commercial")),
        ("fair-noncommercial-research-license", ("non-commercial", "own-terms")),
        ("owkin-non-commercial", ("non-commercial", "own-terms")),
        ("dinov3-license", ("acceptance", "own-terms")),
        ("seer-license", ("own-terms",)),
    ],
)
def test_a_name_tells_its_terms(name: str, terms: tuple[str, ...]) -> None:
    licence = licence_named(name, "somebody")
    assert (licence.name, licence.terms) == (name.lower(), terms)
    assert len(licence.warnings) == len(terms)


@pytest.mark.parametrize("name", [None, "", "other", "unknown"])
def test_without_a_name_it_is_unknown_and_says_so(name: str | None) -> None:
    assert licence_named(name, "x").name == UNKNOWN.name
    assert licence_named(name, "x").warnings == (
        "The licence of the backbone's weights is unknown: look at its source.",
    )


def test_a_gate_means_acceptance() -> None:
    assert licence_named("apache-2.0", "x", gated=True).terms == ("acceptance",)


def test_front_matter_of_a_card_is_read(tmp_path: Path) -> None:
    assert licence_of_card(tmp_path) == UNKNOWN
    card = tmp_path / "README.md"
    card.write_text("---\nlicense: cc-by-nc-nd-4.0\nlanguage: en\nextra_gated_prompt: >-\n  accept\n---\n# A model\n")
    assert licence_of_card(tmp_path).terms == ("no-derivatives", "non-commercial", "acceptance")
    card.write_text("---\nlicense: other\nlicense_name: dinov3-license\nlicense_link: LICENSE.md\n---\n")
    assert licence_of_card(tmp_path).name == "dinov3-license"
    card.write_text("---\r\nlicense:\r\n- mit\r\n---\r\n")
    assert licence_of_card(tmp_path).name == "mit"
    card.write_text("# A model\n\nlicense: mit\n")  # not front matter
    assert licence_of_card(tmp_path) == UNKNOWN


def test_models_of_the_hub_that_we_know() -> None:
    assert licence_of_hub_name("MahmoodLab/UNI@main").terms == ("no-derivatives", "non-commercial", "acceptance")
    assert licence_of_hub_name("facebook/dinov3-vits16-pretrain-lvd1689m").name == "dinov3-license"
    assert licence_of_hub_name("somebody/something") == UNKNOWN


def test_the_first_name_counts_and_every_term() -> None:
    known = first_known(UNKNOWN, licence_named("apache-2.0", "a"), licence_named("mit", "b", gated=True))
    assert (known.name, known.source, known.terms) == ("apache-2.0", "a", ("acceptance",))


def test_backbones_have_their_licence() -> None:
    assert load_backbone("random:tiny", device="cpu").licence == RANDOM_WEIGHTS
    assert load_backbone("efficientnet_lite0", input_size=32, device="cpu").licence.name == "apache-2.0"
