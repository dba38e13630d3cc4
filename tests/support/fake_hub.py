"""A hub on this machine: one model with some files, over the part of the hub's protocol that downloads need."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from tests.support.hub_cache import COMMIT


@contextmanager
def fake_hub(repository: str, files: Mapping[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Serve a model; yield the hub's address and a list that grows by the names of downloaded files."""
    downloaded: list[str] = []
    siblings = [{"rfilename": name, "size": len(content)} for name, content in files.items()]
    info = {"id": repository, "sha": COMMIT, "siblings": siblings, "private": False, "tags": [], "downloads": 0}
    tree = [
        {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
        for name, content in files.items()
    ]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def _answer(self, *, body: bool) -> None:
            path = self.path.partition("?")[0]
            content, more = b"{}", {}
            if path.startswith(f"/api/models/{repository}"):
                content = json.dumps(tree if "/tree/" in path else info).encode()
            elif path.startswith(f"/{repository}/resolve/"):
                name = path.rpartition("/")[2]
                content = files[name]
                more = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}
                if body:
                    downloaded.append(name)
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            for key, value in more.items():
                self.send_header(key, value)
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            """Keep the test's output clean."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", downloaded
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
