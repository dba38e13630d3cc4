"""Whether Python and the libraries are versions that the app supports."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
from collections.abc import Iterator

from fedstats_app import __version__
from fedstats_app.cli.check.finding import Finding

# As in pyproject.toml, which an unpacked app bundle does not have beside it; a test keeps the two equal. From the first
# version on, below the second ("" for any).
SUPPORTED = {
    "flwr": ("1.41.0", "2"),
    "flwr-datasets": ("0.6.0", "1"),
    "torch": ("2.6", ""),
    "torchvision": ("0.21", ""),
    "numpy": ("2.0", ""),
    "pillow": ("10.3", ""),
    "safetensors": ("0.5", ""),
    "matplotlib": ("3.9", ""),
}
SUPPORTED_PYTHON = ("3.11", "3.14")


def check_versions(*, simulation: bool) -> Iterator[Finding]:
    """Check this Python, the libraries, and Ray, which only a simulation needs."""
    yield _python(platform.python_version())
    installed = {name: installed_version(name) for name in SUPPORTED}
    wrong = [text for name, version in installed.items() if (text := _unsupported(name, version))]
    listed = ", ".join(f"{name} {version}" for name, version in installed.items() if version)
    if wrong:
        yield Finding("libraries", "FAIL", "; ".join(wrong), f"install this app's requirements for {sys.executable}")
    else:
        yield Finding("libraries", "ok", f"fedstats-app {__version__}; {listed}")
    ray = installed_version("ray")
    if ray:
        yield Finding("simulation", "ok", f"ray {ray}")
    elif simulation:
        message = "ray is not installed: `flwr run .` cannot simulate on this machine"
        yield Finding("simulation", "warning", message, "install flwr[simulation]; SuperNodes do without it")
    else:
        yield Finding("simulation", "ok", "ray is not installed; a SuperNode does not need it")


def installed_version(name: str) -> str:
    """Return a library's version, "" if it is not installed; it is not imported."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def supports(version: str, first: str, below: str) -> bool:
    """Tell whether a version such as ``2.6.0+cpu`` or ``3.0rc1`` lies from the first on and below the other."""
    return _release(first) <= _release(version) and (not below or _release(version) < _release(below))


def _release(version: str) -> tuple[int, ...]:
    """Return the leading numbers without zeros at the end, so that 2 and 2.0.0 are the same."""
    found = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(number) for number in found[0].split(".")] if found else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _python(version: str) -> Finding:
    first, below = SUPPORTED_PYTHON
    where = f"{version} on {platform.system()} {platform.machine()}"
    if supports(version, first, below):
        return Finding("Python", "ok", where)
    return Finding("Python", "FAIL", f"{where}; supported are versions from {first}, below {below}", "use one of these")


def _unsupported(name: str, version: str) -> str:
    """Say what is wrong with a library's version, "" if nothing."""
    first, below = SUPPORTED[name]
    allowed = f"from {first}" + (f", below {below}" if below else "")
    if not version:
        return f"{name} is not installed (needed: {allowed})"
    return "" if supports(version, first, below) else f"{name} {version} is not supported (needed: {allowed})"
