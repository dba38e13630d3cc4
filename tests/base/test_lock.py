import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedstats_app.base.lock import FolderInUseError, lock_folder

pytestmark = pytest.mark.skipif(os.name == "nt", reason="flock")

HOLDER = """
import sys, time
from pathlib import Path
from fedstats_app.base.lock import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_has_one_user_at_a_time(tmp_path: Path) -> None:
    with lock_folder(tmp_path), pytest.raises(FolderInUseError, match=f"{tmp_path} is in use"):
        lock_folder(tmp_path)
    with lock_folder(tmp_path):
        pass


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(FolderInUseError):
            lock_folder(tmp_path)
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with lock_folder(tmp_path):
        pass


def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        lock_folder(tmp_path / "nowhere")
