"""A run from its folder's first file to the last line printed, however it ends."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from flwr.app import Context

from fedstats_app.config import AppConfig
from fedstats_app.grid.exchange import SERVER_SIDE_CODES
from fedstats_app.grid.progress import say
from fedstats_app.results.disclosure import append_disclosure
from fedstats_app.results.run_folder import RunFolder
from fedstats_app.wire.disclosure import DisclosureLedger


@contextmanager
def lifetime(context: Context) -> Iterator[tuple[AppConfig, RunFolder, DisclosureLedger]]:
    """Give a run its configuration, its folder, and the ledger of what left each site.

    Whatever goes wrong is in the folder's status and in the last line printed; what left each site is written down in
    any case.

    Parameters
    ----------
    context : Context
        Flower's.

    Raises
    ------
    ConfigError, FileNotFoundError, OSError
        If the configuration is wrong, or there is no folder to go on in or none can be made.
    """
    folder: RunFolder | None = None
    try:
        folder = _early_folder(context)
        config = AppConfig.from_run_config(context.run_config)
        if config.run.resume:
            folder = RunFolder.reopen(config.run.resume, context.run_id)
        elif folder is None:
            folder = RunFolder.create(config.run.output_dir, context.run_id)
        folder.write_status("running")
        ledger = DisclosureLedger(SERVER_SIDE_CODES)
        try:
            yield config, folder, ledger
        finally:
            append_disclosure(folder.path, ledger.entries(), run_id=folder.run_id, methods=config.methods)
    except BaseException as error:
        reason = f"{type(error).__name__}: {error}"
        if folder is not None:
            folder.write_status("failed", reason)
            say(f"run folder: {folder.path}")
        say(f"FAILED: {reason}")
        _say_last(f"[fedstats] FAILED: {' '.join(reason.split())}")
        raise
    folder.write_status("completed")
    say(f"completed; results are in\n{folder.path}")
    _say_last(str(folder.path))


def _early_folder(context: Context) -> RunFolder | None:
    """Make the run folder before anything is checked, so that a wrong configuration leaves its reason there too."""
    if context.run_config.get("resume"):
        return None
    try:
        return RunFolder.create(str(context.run_config.get("output-dir", "")), context.run_id)
    except (ValueError, OSError):
        return None  # the configuration's own check says what is wrong with it, along with all other problems


def _say_last(line: str) -> None:
    logging.getLogger("flwr").addHandler(LastWord(line))


class LastWord(logging.Handler):
    """Says a line once more after everything that Flower logs when its process ends: its traceback, its exit code.

    Parameters
    ----------
    line : str
        What a user should see last.
    """

    def __init__(self, line: str) -> None:
        super().__init__()
        self.line = line

    def emit(self, record: logging.LogRecord) -> None:
        """Print the line after the message with which Flower's process ends."""
        if record.funcName == "flwr_exit":
            print(self.line, flush=True)


@contextmanager
def quiet_flower() -> Iterator[None]:
    """Keep Flower's own round-by-round log, which repeats what is said here, to warnings."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
