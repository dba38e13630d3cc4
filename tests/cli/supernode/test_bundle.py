"""Whose code answers, whatever the bundle is."""

import contextlib
import hashlib
import io
import struct
import tomllib
import tracemalloc
import warnings
import zipfile
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstats_app.base.option import ConfigError
from fedstats_app.cli.supernode import MAX_PROJECT_SIZE, CodePolicy, RefusedApp, project_of
from fedstats_app.wire import PROTOCOL_VERSION
from tests.support.flower import REPOSITORY

OURS = f"[tool.fedstats]\nprotocol-version = {PROTOCOL_VERSION}\n"
OWN = CodePolicy()


def archive(files: dict[str, str] | list[tuple[str, str]], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as made, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a name that comes twice
        for name, text in files.items() if isinstance(files, dict) else files:
            made.writestr(zipfile.ZipInfo(name), text, compression)  # dated 1980: the same bytes in every test process
    return content.getvalue()


def test_the_project_s_own_version_is_that_of_the_code() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert project["tool"]["fedstats"] == {"protocol-version": PROTOCOL_VERSION}


@pytest.mark.parametrize("version", ["0", "1", "true", "1.0", '"1"', "[1]", f"'{'x' * 999}'"])
def test_another_protocol_version_is_refused(version: str) -> None:
    with pytest.raises(RefusedApp, match="protocol-version is 2, that of the app sent is ") as refused:
        OWN.runs_bundle(archive({"pyproject.toml": f"[tool.fedstats]\nprotocol-version = {version}"}))
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("text", ["", "tool = 1", "[tool]\nfedstats = 1", "[tool.flwr.app]", "[tool.fedstats]"])
def test_an_app_that_is_another_is_refused(text: str) -> None:
    with pytest.raises(RefusedApp, match="that of the app sent is None"):
        OWN.runs_bundle(archive({"pyproject.toml": text}))


def overstated(content: bytes) -> bytes:
    """Let an archive say that its file has one byte."""
    size = struct.pack("<L", len(zlib.compress(b"")))  # any small number
    end = content.index(b"PK\x01\x02")
    return content[: end + 24] + size + content[end + 28 :]


@pytest.mark.parametrize("policy", [OWN, CodePolicy(any_app=True)])
@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "BadZipFile"),
        (b"PK\x05\x06", "BadZipFile"),
        (archive({}), "one pyproject.toml"),
        (archive({"a/pyproject.toml": OURS, "/pyproject.toml": OURS, "../pyproject.toml": OURS}), "one pyproject"),
        (archive([("pyproject.toml", OURS), ("pyproject.toml", "x = 1")]), "got 2"),
        (archive({"pyproject.toml": OURS + "#" * MAX_PROJECT_SIZE}), "at most 200,000 bytes"),
        (archive({"pyproject.toml": OURS}, zipfile.ZIP_BZIP2), "stored or deflated"),
        (archive({"pyproject.toml": OURS}, zipfile.ZIP_LZMA), "stored or deflated"),
        (overstated(archive({"pyproject.toml": OURS})), "cannot be read"),
        (archive({"pyproject.toml": "x = "}), "TOMLDecodeError"),
        (archive({"pyproject.toml": "x = " + "[" * 100_000}), "RecursionError"),
        (archive({"pyproject.toml": OURS})[:-30], "BadZipFile"),
    ],
    ids=range(12),
)
def test_what_is_no_bundle_is_refused_and_never_unpacked(content: bytes, reason: str, policy: CodePolicy) -> None:
    with pytest.raises(RefusedApp, match=reason):
        policy.runs_bundle(content)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (" " * 50_000_000, "at most 200,000 bytes"),
        # TOML readers take the square of a key's parts.
        ("a" + ".a" * 3_000 + " = 1", "no line with more than 50 dots"),
        ("a" + "\t. a" * 3_000 + " = 1", "no line with more than 50 dots"),
    ],
    ids=["zip", "key", "key in spaces"],
)
def test_a_bomb_takes_no_memory(text: str, reason: str) -> None:
    bomb = archive({"pyproject.toml": OURS + text})
    tracemalloc.start()
    try:
        with pytest.raises(RefusedApp, match=reason):
            OWN.runs_bundle(bomb)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=60), st.integers(0, 400))
def test_nothing_but_refusals_is_raised(noise: bytes, where: int) -> None:
    content = archive({"pyproject.toml": OURS})
    for mutated in (noise, content[:where] + noise + content[where + len(noise) :]):
        with contextlib.suppress(RefusedApp):
            assert isinstance(project_of(mutated), dict)


BUNDLE = archive({"pyproject.toml": "[project]"})
DIGEST = hashlib.sha256(BUNDLE).hexdigest()


def test_the_code_of_approved_bundles_runs_and_no_other() -> None:
    policy = CodePolicy.of({"approved-apps": f" {DIGEST.upper()}, {'0' * 64}"})
    assert policy.runs_bundle(BUNDLE) is True
    for edited in (archive({"pyproject.toml": "[project] "}), BUNDLE + b"\0", archive({"pyproject.toml": OURS})):
        with pytest.raises(RefusedApp, match=f"SHA-256, which is {hashlib.sha256(edited).hexdigest()}"):
            policy.runs_bundle(edited)


@pytest.mark.parametrize("value", ["", ",", DIGEST[:-1], DIGEST + "0", "g" * 64, f"{DIGEST} {DIGEST}", 1, True])
def test_approved_apps_are_sha256(value: object) -> None:
    with pytest.raises(ConfigError, match="approved-apps: must be SHA-256 of app bundles, 64 hex digits each"):
        CodePolicy.of({"approved-apps": value})


def test_approving_some_and_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="approved-apps contradicts --any-app"):
        CodePolicy.of({"approved-apps": DIGEST}, any_app=True)
