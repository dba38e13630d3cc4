"""A user's file as mypy and pyright read it: our names have types, and a wrong name is an error."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

RIGHT = """
import fedstats_app
from fedstats_app.sklearn import Fed3RClassifier
from fedstats_app.strategies import Fed3R, FedCOF, OnePass

class Mine(FedCOF):
    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes, shrinkage=0.1, min_clients=3)

strategy: Fed3R = Fed3R(10, ridge_lambda="auto", seed=3)
dim: int = OnePass(10, [strategy, Mine(10)]).heads["fed3r"].feature_dim
classifier: Fed3RClassifier = Fed3RClassifier(ridge_lambda=0.1) + Fed3RClassifier()
labels: list[str] = fedstats_app.load("run", method="fed3r").predict(["a.png"])
accuracy = fedstats_app.simulate({"method": "fedncm"}) / "results.json"
accuracy.read_text()
"""
WRONG = """Fed3R(10, ridge_lamda=3)
Fed3R(10, min_client=3)
Fed3R(10, solver="lu")
Mine(10, 11)
Fed3RClassifier(ridge_lamda=3)
fedstats_app.load("run", methode="fed3r")
fedstats_app.simulate({}, fleed=1)
fedstats_app.lod("run")
from fedstats_app.strategies import Fed4R
"""
# Of large libraries' types nothing here depends, and to read them takes half a minute.
MYPY = """[mypy]
strict = true
follow_imports = silent
[mypy-flwr.*,numpy.*,sklearn.*,torch.*,transformers.*]
follow_imports = skip
"""


@pytest.mark.parametrize(
    ("checker", "error"),
    [(["mypy"], r":(\d+): error"), (["pyright"], r":(\d+):\d+ - error")],
    ids=["mypy", "pyright"],
)
def test_a_users_file_has_types(checker: list[str], error: str, tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(RIGHT + WRONG)
    (tmp_path / "mypy.ini").write_text(MYPY)
    done = subprocess.run([sys.executable, "-m", *checker, "user.py"], cwd=tmp_path, capture_output=True, text=True)
    if done.returncode not in (0, 1):  # pyright fetches its JavaScript on first use
        pytest.skip(f"{checker[0]} cannot run: {(done.stdout + done.stderr)[-300:]}")
    first = RIGHT.count("\n") + 1
    lines = {int(number) for number in re.findall(error, done.stdout)}
    assert lines == set(range(first, first + WRONG.count("\n"))), done.stdout
