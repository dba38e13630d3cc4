"""Pages in Debian's headless Chromium, by its DevTools protocol over a pipe: no driver and no network needed."""

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium")


@dataclass
class Page:
    """What a page did when it was opened.

    `problems` are errors and warnings of the console; `requests` the addresses of all that it asked for, but for data
    in the page itself.
    """

    problems: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)


class Browser:
    """A running Chromium, which is spoken to through file descriptors 3 and 4."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        commands, self._out = os.pipe()
        self._in, events = os.pipe()

        def wire() -> None:
            # Copies first: one of the ends may have the number that another is to get.
            ends = os.dup(commands), os.dup(events)
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        words = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        words += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "--no-first-run", "about:blank"]
        self._process = subprocess.Popen(
            [CHROMIUM, *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=wire,
            close_fds=False,
            start_new_session=True,
        )
        os.close(commands)
        os.close(events)
        self._number, self._buffer, self._events = 0, b"", list[dict[str, Any]]()
        targets = self._call("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def close(self) -> None:
        os.close(self._out)
        os.close(self._in)
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(timeout=5)

    def open(self, path: Path, *, width: int, height: int, dark: bool = False, **scripts: str) -> Page:
        """Open a file in a window of this size, as a phone below 500 pixels; evaluate scripts to `values`."""
        phone = width < 500
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._events.clear()
        self._call("Page.navigate", url=path.as_uri())
        self._wait_for("Page.loadEventFired")
        page = Page(values={name: self._value(script) for name, script in scripts.items()})
        for event in self._events:
            known = event["params"]
            if event["method"] == "Network.requestWillBeSent" and not known["request"]["url"].startswith("data:"):
                page.requests.append(known["request"]["url"])
            elif event["method"] == "Log.entryAdded" and known["entry"]["level"] in ("warning", "error"):
                page.problems.append(known["entry"]["text"])
            elif event["method"] in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
                page.problems.append(json.dumps(known)[:300])
        return page

    def screenshot(self) -> bytes:
        """Take a picture of the whole page that is open, as PNG."""
        return base64.b64decode(self._call("Page.captureScreenshot", format="png", captureBeyondViewport=True)["data"])

    def _value(self, script: str) -> Any:
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def _call(self, method: str, **parameters: object) -> dict[str, Any]:
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": parameters}
        if hasattr(self, "_session"):
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                result: dict[str, Any] = answer["result"]
                return result
            self._events.append(answer)

    def _wait_for(self, event: str) -> None:
        deadline = time.monotonic() + 60
        while not any(one["method"] == event for one in self._events):
            assert time.monotonic() < deadline, f"no {event}"
            self._events.append(self._read())

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            chunk = os.read(self._in, 1 << 20)
            assert chunk, "Chromium has gone"
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message


@contextmanager
def browser() -> Iterator[Browser]:
    """Give a browser with a profile of its own, and end it."""
    with tempfile.TemporaryDirectory(prefix="fedstats-chromium-", ignore_cleanup_errors=True) as profile:
        running = Browser(Path(profile))
        try:
            yield running
        finally:
            running.close()
