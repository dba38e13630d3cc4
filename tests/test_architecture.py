"""Dependencies point one way: statistics <- heads <- strategies <- server_app, and few modules know Flower."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "fedstats_app"

# What each part may import of the others. A part not named here may not be imported by anybody.
ALLOWED: dict[str, set[str]] = {
    "statistics": set(),
    "heads": {"statistics"},
    "backbones": {"training"},
    "data": set(),
    "config": set(),
    "results": {"statistics", "heads", "backbones", "data", "config", "__init__", "strategies"},
    "own_data": {"config", "data"},
    "samples": {"backbones", "data"},
    "site": {"backbones", "data", "config", "own_data", "samples"},
    "cli": {"__init__", "backbones", "config", "data", "heads", "own_data", "results", "site", "threads"},
    "server_data": {"data", "heads", "site", "statistics"},
    "training": {"statistics", "heads"},
    "wire": {"statistics", "heads", "training"},
    "strategies": {"statistics", "heads", "wire", "config", "training", "privacy"},
    "privacy": {"statistics", "heads"},
    "node": {"config", "site", "wire"},
    "client_data": {"config", "data", "own_data", "privacy", "site"},
    "client_evaluation": {"client_data", "heads", "node", "privacy", "site", "wire"},
    "client_statistics": {"client_data", "node", "privacy", "wire"},
    "server_extension": {"config", "results", "statistics", "strategies"},
    "client_training": {
        "client_data",
        "config",
        "data",
        "heads",
        "node",
        "privacy",
        "samples",
        "site",
        "training",
        "wire",
    },
    "mezo_model": {"backbones", "heads", "mezo_state", "training", "wire"},
    "mezo_state": {"results", "training"},
    "client_mezo": {"client_training", "config", "mezo_model", "mezo_state", "node", "site", "training", "wire"},
    "server_mezo": {
        "backbones",
        "config",
        "console",
        "mezo_model",
        "mezo_state",
        "results",
        "server_training",
        "server_training_journal",
        "strategies",
        "training",
        "wire",
    },
    "server_training_journal": {"results", "samples", "server_training", "training"},
    "client_state": {"results", "training"},
    "client_personal": {
        "client_data",
        "client_evaluation",
        "client_state",
        "client_training",
        "heads",
        "node",
        "site",
        "statistics",
        "training",
        "wire",
    },
    "server_closed_form": {
        "backbones",
        "config",
        "console",
        "heads",
        "results",
        "server_data",
        "server_extension",
        "statistics",
        "strategies",
        "wire",
    },
    "server_head_training": {
        "console",
        "results",
        "server_training",
        "server_training_journal",
        "site",
        "strategies",
        "training",
        "wire",
    },
    "server_training": {
        "backbones",
        "config",
        "console",
        "heads",
        "results",
        "server_data",
        "server_head_training",
        "server_mezo",
        "site",
        "statistics",
        "strategies",
        "training",
        "wire",
    },
    "threads": set(),
    "console": set(),
    "client_app": {
        "client_data",
        "client_evaluation",
        "client_mezo",
        "client_personal",
        "client_statistics",
        "client_training",
        "config",
        "node",
        "own_data",
        "privacy",
        "threads",
        "wire",
    },
    "server_app": {
        "backbones",
        "config",
        "console",
        "heads",
        "own_data",
        "results",
        "samples",
        "server_closed_form",
        "server_data",
        "server_extension",
        "server_training",
        "site",
        "statistics",
        "strategies",
        "threads",
        "training",
        "wire",
    },
    "__init__": {"results"},
}
FLOWER = {
    "wire",
    "strategies",
    "node",
    "client_app",
    "client_evaluation",
    "client_mezo",
    "client_personal",
    "client_statistics",
    "client_training",
    "server_app",
    "server_closed_form",
    "server_head_training",
    "server_training",
}
PUBLIC_FLOWER = {"flwr.app", "flwr.clientapp", "flwr.clientapp.mod", "flwr.serverapp", "flwr.serverapp.strategy"}
TORCH_ONLY = {"statistics", "heads", "training"}


def modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).parts[0].removesuffix(".py"), path


def imports(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield (module, only for types) of every import, those inside functions included."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in typing_only) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or "", id(node) in typing_only


@pytest.mark.parametrize(("part", "path"), list(modules()), ids=lambda value: str(getattr(value, "name", value)))
def test_dependencies_point_one_way(part: str, path: Path) -> None:
    for module, typing_only in imports(path):
        names = module.split(".")
        if names[0] == "fedstats_app":
            other = names[1] if len(names) > 1 else "__init__"
            if other == part:
                continue
            assert other in ALLOWED[part], f"{path.name} imports {module}"
            assert typing_only or (part, other) != ("results", "strategies"), f"{path.name} depends on {module}"
        elif names[0] == "flwr":
            assert part in FLOWER, f"{path.name} imports {module}"
            assert module in PUBLIC_FLOWER, f"{path.name} imports {module}, which is not public"
        elif part in TORCH_ONLY:
            assert names[0] in {"torch", "numpy"} | sys.stdlib_module_names, f"{path.name} imports {module}"


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("fedstats_app", ("torch", "flwr", "numpy")),
        ("fedstats_app.statistics", ("flwr", "torchvision", "datasets", "PIL")),
        ("fedstats_app.heads", ("flwr", "torchvision", "datasets", "PIL")),
        ("fedstats_app.backbones", ("flwr", "torchvision", "datasets", "transformers")),
        ("fedstats_app.results", ("flwr", "torchvision", "datasets", "matplotlib")),
        ("fedstats_app.cli", ("torch", "flwr", "numpy", "PIL", "cryptography")),
        ("fedstats_app.cli.predict", ("flwr", "ray", "torchvision", "datasets", "matplotlib")),
        ("fedstats_app.cli.doctor", ("torch", "flwr", "ray")),
        ("fedstats_app.client_app", ("torch", "torchvision", "matplotlib", "datasets", "ray")),
        ("fedstats_app.client.statistics", ("torchvision", "matplotlib", "datasets", "ray")),
        ("fedstats_app.client.training", ("torchvision", "transformers", "matplotlib", "datasets", "ray")),
    ],
)
def test_imports_are_light(module: str, absent: tuple[str, ...]) -> None:
    program = f"import sys, {module}; print([name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


def test_nothing_is_unpickled() -> None:
    for _, path in modules():
        text = path.read_text()
        assert not re.search(r"pickle\.(load|Unpickler)|allow_pickle=True", text), path
        assert text.count("torch.load(") == text.count("weights_only=True"), path


def test_no_module_is_named_after_nothing() -> None:
    assert [path for _, path in modules() if path.stem in {"utils", "helpers", "misc", "common"}] == []
