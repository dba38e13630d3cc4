"""Rooms stand on levels, imports point down, nothing goes in a circle, and few rooms know Flower."""

import ast
import re
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.support.commands import printed_by

PACKAGE = Path(__file__).parents[1] / "fedstats_app"

# The rooms of each level; a room imports only from rooms of lower levels, also inside functions and for types.
LEVELS = (
    {"base", "secure", "__version__"},
    {"statistics", "data"},
    {"heads"},
    {"backbones", "methods"},
    {"training"},
    {"fedmezo"},
    {"wire", "privacy"},
    {"grid"},
    {"strategies", "report", "sklearn", "testing"},
    {"settings"},
    {"client", "server"},
    {"client_app", "server_app"},
    {"cli.supernode", "simulation"},
    {"__init__"},
    {"cli"},
)
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
KNOW_FLOWER = {"wire", "grid", "strategies", "client", "server", "client_app", "server_app"}
KNOW_FLOWER |= {"cli.supernode", "simulation", "testing"}
# A SuperNode with other processes than Flower's own needs what is not public, and so does a run in one process.
KNOW_FLOWERS_INSIDES = {"fedstats_app.cli.supernode.flower", "fedstats_app.grid.in_process"}
PUBLIC_FLOWER = {"flwr.app", "flwr.clientapp", "flwr.clientapp.mod", "flwr.serverapp", "flwr.serverapp.strategy"}
TORCH_ONLY = {"base", "statistics", "heads", "training", "fedmezo"}
MODULES = {
    ".".join(("fedstats_app", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


def room(module: str) -> str:
    """Name the room of a module."""
    names = (module.split(".") + ["__init__"])[1:]
    return ".".join(names[:2]) if ".".join(names[:2]) in LEVEL else names[0]


def imports(module: str) -> Iterator[str]:
    """Yield every module that one imports, for types and inside functions too."""
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{module}: relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES or inner == "fedstats_app.__version__" else node.module


def test_every_room_has_a_level_and_the_top_stays_small() -> None:
    assert {room(module) for module in MODULES} == LEVEL.keys() - {"__version__"}
    assert len([module for module in MODULES if not MODULES[module].relative_to(PACKAGE).parts[1:]]) <= 8


def not_allowed(module: str, other: str) -> bool:
    """Whether a module must not import another: a room above its own, Flower where it is unknown, more than torch."""
    own = room(module)
    if other.split(".")[0] in ("research", "tests"):
        return True
    if other.startswith("fedstats_app"):
        return room(other) != own and LEVEL[room(other)] >= LEVEL[own]
    if other.split(".")[0] == "flwr":
        return own not in KNOW_FLOWER or (other not in PUBLIC_FLOWER and module not in KNOW_FLOWERS_INSIDES)
    allowed = {"torch", "numpy", "safetensors", "filelock"} | sys.stdlib_module_names
    return own in TORCH_ONLY and other.split(".")[0] not in allowed


def test_imports_point_downward() -> None:
    pairs = [(module, other) for module in MODULES for other in imports(module)]
    wrong = [f"{module} imports {other}" for module, other in pairs if not_allowed(module, other)]
    assert not wrong, "\n".join(wrong)


def test_no_modules_import_each_other_in_a_circle() -> None:
    sorter = TopologicalSorter(
        {module: {other for other in imports(module) if other in MODULES and other != module} for module in MODULES}
    )
    sorter.prepare()  # raises CycleError, which names the circle


def test_every_room_says_what_it_is_for_and_what_it_may_import() -> None:
    for name in {room(module) for module in MODULES}:
        path = PACKAGE / name.split(".")[0] / "__init__.py"
        if path.is_file():
            text = ast.get_docstring(ast.parse(path.read_text())) or ""
            assert "mport" in text, f"{name}/__init__.py must say what the room may import"


# Each chain is imported by one process, in order: what is absent then would be absent after its last import alone.
LIGHT = [
    {
        "fedstats_app.cli": ("torch", "flwr", "numpy", "PIL", "cryptography"),
        "fedstats_app.cli.check": ("torch", "flwr", "ray", "cryptography"),
    },
    {
        "fedstats_app.client_app": ("torch", "torchvision", "matplotlib", "datasets", "ray"),
        "fedstats_app.cli.run": ("torch", "torchvision", "matplotlib", "datasets", "ray"),
        "fedstats_app.client.statistics": ("torchvision", "matplotlib", "datasets", "ray"),
        "fedstats_app.client.training": ("torchvision", "transformers", "matplotlib", "datasets", "ray"),
    },
    {
        "fedstats_app.statistics": ("flwr", "torchvision", "datasets", "PIL"),
        "fedstats_app.heads": ("flwr", "torchvision", "datasets", "PIL"),
        "fedstats_app.backbones": ("flwr", "torchvision", "datasets", "transformers"),
        "fedstats_app.report": ("flwr", "torchvision", "datasets", "matplotlib"),
        "fedstats_app.cli.predict": ("flwr", "ray", "torchvision", "datasets", "matplotlib"),
    },
]
IMPORT_IN_TURN = """
import importlib, sys
for module, absent in {!r}.items():
    importlib.import_module(module)
    print(module, [name for name in absent if name in sys.modules])
"""


@pytest.mark.parametrize("chain", LIGHT, ids=lambda chain: next(reversed(chain)))
def test_imports_are_light(chain: dict[str, tuple[str, ...]]) -> None:
    assert printed_by(IMPORT_IN_TURN.format(chain)).splitlines() == [f"{module} []" for module in chain]


def test_nothing_is_unpickled() -> None:
    for path in MODULES.values():
        text = path.read_text()
        assert not re.search(r"pickle\.(load|Unpickler)|allow_pickle=True", text), path
        assert text.count("torch.load(") == text.count("weights_only=True"), path


def test_no_module_is_named_after_nothing() -> None:
    assert [path for path in MODULES.values() if path.stem in {"utils", "helpers", "misc", "common"}] == []
