import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from fedstats_app.backbones.backbone import Backbone
from tests.support.hub_cache import HubCache


def random_images(n: int, *, seed: int = 0) -> list[Image.Image]:
    """Make RGB images of noise, of different sizes."""
    rng = np.random.default_rng(seed)
    shapes = [tuple(rng.integers(8, 70, 2)) for _ in range(n)]
    return [Image.fromarray(rng.integers(0, 256, (*shape, 3), dtype=np.uint8)) for shape in shapes]


def features(backbone: Backbone, samples: Iterable[Any]) -> Tensor:
    """Return the features (n, d) of samples."""
    return torch.cat(list(backbone.extract(samples)))


# From a request's method and path to status, headers and content.
Answer = Callable[[str, str], tuple[int, dict[str, str], bytes]]


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """Serve on this machine, and give the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, content = answer(self.command, self.path.partition("?")[0])
            self.send_response(status)
            for key, value in (headers | {"Content-Length": str(len(content))}).items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET

        def log_message(self, *args: object) -> None:
            """Keep the test's output clean."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubCache:
    """An empty cache of the hub, and no network."""
    import huggingface_hub._snapshot_download as snapshot
    from huggingface_hub import constants

    root = tmp_path / "hub-cache"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(root))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert snapshot.constants is constants
    return HubCache(root)
