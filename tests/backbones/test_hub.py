"""A hub that is not there, that has no such model, or that asks for its terms to be accepted first."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedstats_app.backbones import hub
from fedstats_app.backbones.hub import hub_folder, licence_of_card
from fedstats_app.backbones.weights import WeightsError
from tests.backbones.conftest import serving
from tests.support.hub_cache import COMMIT, HubCache


@contextmanager
def fake_hub(repository: str, files: Mapping[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Serve a model by the hub's protocol; give the address and a list that grows by the names of downloaded files."""
    downloaded: list[str] = []
    siblings = [{"rfilename": name, "size": len(content)} for name, content in files.items()]
    info = {"id": repository, "sha": COMMIT, "siblings": siblings, "private": False, "tags": [], "downloads": 0}
    tree = [
        {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
        for name, content in files.items()
    ]

    def answer(method: str, path: str) -> tuple[int, dict[str, str], bytes]:
        if path.startswith(f"/api/models/{repository}"):
            return 200, {}, json.dumps(tree if "/tree/" in path else info).encode()
        if not path.startswith(f"/{repository}/resolve/"):
            return 200, {}, b"{}"
        name = path.rpartition("/")[2]
        if method == "GET":
            downloaded.append(name)
        etag = f'"{hashlib.sha1(files[name]).hexdigest()}"'
        return 200, {"X-Repo-Commit": COMMIT, "ETag": etag}, files[name]

    with serving(answer) as address:
        yield address, downloaded


def at(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the hub be at an address, as HF_ENDPOINT does before huggingface_hub is imported."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)


@pytest.fixture
def refusing_hub(hub_cache: HubCache, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A hub on this machine that answers every question with the error code in the list."""
    code = ["GatedRepo"]

    with serving(lambda *_: (401, {"X-Error-Code": code[0], "X-Error-Message": code[0]}, b"")) as address:
        monkeypatch.delenv("HF_HUB_OFFLINE")
        at(address, monkeypatch)
        yield code


def test_a_gate_or_an_unknown_name_is_one_message_with_what_to_do(refusing_hub: list[str]) -> None:
    with pytest.raises(WeightsError) as caught:
        hub_folder("MahmoodLab/UNI")
    message = str(caught.value)
    assert "terms must be accepted at https://huggingface.co/MahmoodLab/UNI, then sign in by `hf auth login`" in message
    assert "hf download MahmoodLab/UNI" in message and "backbone-weights" in message
    assert "\n" not in message and "127.0.0.1" not in message
    refusing_hub[0] = "RepoNotFound"
    with pytest.raises(WeightsError, match="has no such model, or it is private"):
        hub_folder("nobody/nothing")


def test_what_is_half_in_the_cache_is_not_taken(hub_cache: HubCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "require_reachable", lambda url: pytest.fail("offline means no network"))
    folder = hub_cache.folder("org/name")
    (folder / "config.json").write_text("{}")
    with pytest.raises(WeightsError, match="org/name is not on this machine and HF_HUB_OFFLINE forbids downloads"):
        hub_folder("org/name")
    (folder / "model.safetensors").touch()
    assert hub_folder("org/name") == folder


FILES = {"config.json": b"{}", "README.md": b"---\nlicense: mit\n---\n", "modeling_evil.py": b"1/0"}


@pytest.mark.parametrize(
    ("weights", "taken"),
    [
        (["model.safetensors", "pytorch_model.bin", "open_clip_model.safetensors"], ["model.safetensors"]),
        (["uni.safetensors", "pytorch_model.bin"], ["uni.safetensors"]),
        (["pytorch_model.bin", "slide_encoder.pth"], ["pytorch_model.bin"]),
        (["weights.pth"], ["weights.pth"]),
    ],
)
def test_what_is_needed_is_downloaded_once_and_a_pickle_only_without_better(
    hub_cache: HubCache, monkeypatch: pytest.MonkeyPatch, weights: list[str], taken: list[str]
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    files = FILES | {name: name.encode() for name in weights}
    with fake_hub("org/name", files) as (address, downloaded):
        at(address, monkeypatch)
        folder = hub_folder("org/name")
        assert sorted(downloaded) == sorted(["config.json", "README.md", *taken])
        assert (folder / taken[0]).read_bytes() == taken[0].encode() and folder.is_relative_to(hub_cache.root)
        assert hub_folder("org/name") == folder
        assert len(downloaded) == 3  # it lies there already
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert hub_folder("org/name") == folder


@pytest.mark.parametrize(
    ("card", "licence"),
    [
        ("---\nlicense: cc-by-nc-nd-4.0\nlanguage: en\n---\n# A model\n", "cc-by-nc-nd-4.0"),
        ("---\nlicense: other\nlicense_name: dinov3-license\nlicense_link: LICENSE.md\n---\n", "dinov3-license"),
        ("---\r\nlicense:\r\n- mit\r\n---\r\n", "mit"),
        ("---\nlicense: other\n---\n", "unknown"),
        ("# A model\n\nlicense: mit\n", "unknown"),  # not front matter
    ],
)
def test_the_licence_is_read_from_the_front_matter_of_a_card(tmp_path: Path, card: str, licence: str) -> None:
    assert licence_of_card(tmp_path, "mit") == "mit"
    (tmp_path / "README.md").write_text(card)
    assert licence_of_card(tmp_path) == licence
