import json

from fedstats_app.report.export.hub_folder import model_card
from fedstats_app.report.run_record import RunRecord

NAMES = ["[x](javascript:alert(1))", "<img src=x onerror=alert(1)>", "**b**_i_", "a|b`c\nd"]
HEAD = {"class-names": json.dumps(NAMES), "regulariser": "lambda 12 (auto)", "backbone": "efficientnet_lite0"}
HEAD |= {"backbone-licence": "apache-2.0", "dataset": "hub:somebody/flowers: and more", "num-clients": "20"}
HEAD |= {"num-examples": "8000", "seed": "3", "versions": json.dumps({"torch": "2.6.0", "ray": "not installed"})}


def test_a_class_name_is_no_markdown() -> None:
    """A node chooses its classes' names, and the card is meant to be shown on a hub's page."""
    results = {"methods": {"fed3r": {"accuracy": 0.8}}, "evaluated_on": "server", "num_test_examples": 2000}
    card = model_card(RunRecord("a-run", {}, results=results, heads={"fed3r": HEAD}), "fed3r", "")
    assert r"\[x\](javascript:alert(1)), \<img src=x onerror=alert(1)\>, \*\*b\*\*\_i\_, a b c d." in card
    assert "<img" not in card.replace(r"\<img", "") and 'datasets: ["somebody/flowers: and more"]' in card
    assert "Accuracy: 80.00 %, on 2,000 test images of the server" in card
    assert "Fed3R, Fani et al. 2024 (lambda 12 (auto))" in card and "torch 2.6.0, seed 3" in card
