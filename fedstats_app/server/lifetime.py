"""The frame of a run: its folder, status and report, and its last line, however it ends."""

from __future__ import annotations

import logging
import textwrap
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from flwr.app import ConfigRecord, Context

from fedstats_app.base.files import remove_unfinished
from fedstats_app.base.lock import lock_folder
from fedstats_app.base.progress import say
from fedstats_app.grid.client_grid import SERVER_SIDE_CODES
from fedstats_app.report.run_folder import RunFolder, Status, can_resume
from fedstats_app.report.text_columns import WIDTH
from fedstats_app.settings.app_config import AppConfig
from fedstats_app.wire.disclosure import DisclosureLedger

# In the node-config of a ServerApp that runs in its user's own process.
IN_PROCESS = "in-process"
# And there, the name of the run folder; "" for a name made of the time.
FOLDER_NAME = "run-folder"
# Where a context's state says which folder the run has.
_STATE, _FOLDER = "fedstats", "run-folder"
# Of a run that `resume` refuses.
BEGINS_ANEW = "a run with secure-sums or noise cannot be resumed: start it again with the same settings"
# Characters of a failure's text that are kept and said.
_MAX_REASON = 3000


@contextmanager
def lifetime(context: Context) -> Iterator[tuple[AppConfig, RunFolder, DisclosureLedger]]:
    """Give a run its configuration, its folder, and the ledger of what left each site.

    Whatever goes wrong is in the folder's status and in the last line printed, also where the disk is full; what left
    each site is written down in any case. Until the end no other process can run in the folder.

    Parameters
    ----------
    context : Context
        Flower's.

    Raises
    ------
    ConfigError, FileNotFoundError, OSError, FolderInUseError
        If the configuration is wrong, there is no folder to go on in, none can be made, or it is in use.
    """
    with ExitStack() as held:
        folder: RunFolder | None = None
        try:
            if not context.run_config.get("resume"):
                # Before anything is checked, so that a wrong configuration leaves its reason there too. What is wrong
                # with the folder itself the configuration's own check says, along with all other problems.
                with suppress(ValueError, OSError):
                    folder = _folder(context, str(context.run_config.get("output-dir", "")), "", held)
            config = AppConfig.from_run_config(context.run_config)
            folder = folder or _folder(context, config.run.output_dir, config.run.resume, held)
            context.state[_STATE] = ConfigRecord({_FOLDER: str(folder.path)})
            folder.write_status("running")
            (folder.path / "traceback.txt").unlink(missing_ok=True)
            with _disclosed(folder, config) as ledger:
                yield config, folder, ledger
            folder.write_status("completed")
            _write_report(folder)
        except BaseException as error:
            _report_failure(folder, error, can_continue=can_resume(context.run_config))
            raise
        # In a process of Flower's the folder is the last word, when it ends.
        where = f"\n{folder.path}" if context.node_config.get(IN_PROCESS) else ""
        _end([f"completed; results are in{where}"], LastWord(str(folder.path)))


@contextmanager
def _disclosed(folder: RunFolder, config: AppConfig) -> Iterator[DisclosureLedger]:
    """Write down what left each site when the block ends, however it ends."""
    ledger = DisclosureLedger(SERVER_SIDE_CODES)
    try:
        yield ledger
    except BaseException as error:
        try:
            folder.append_disclosure(ledger.entries(), config.methods)
        except OSError as second:
            error.add_note(f"the disclosure (what left each site) could not be written: {second}")
        raise
    folder.append_disclosure(ledger.entries(), config.methods)


def folder_of(context: Context) -> Path:
    """Return the folder of the run that a context was given to."""
    return Path(str(context.state.config_records[_STATE][_FOLDER]))


def _folder(context: Context, output_dir: str, resume: str, held: ExitStack) -> RunFolder:
    """Make a run folder, or open that of an interrupted run; only this process writes to it from now on."""
    if resume:
        folder = RunFolder.reopen(resume, context.run_id)
    else:
        name = str(context.node_config.get(FOLDER_NAME, ""))
        folder = RunFolder.create(output_dir, context.run_id, name=name)
    held.enter_context(lock_folder(folder.path))
    remove_unfinished(folder.path)
    return folder


def _write_report(folder: RunFolder) -> None:
    """Write the page that shows the run, and say its warnings; a run is not worse for a page that cannot be made."""
    try:
        from fedstats_app.report.page import write_report  # its libraries are needed nowhere before
        from fedstats_app.report.run_record import RunRecord
        from fedstats_app.report.wording import warnings

        page, run = write_report(folder.path), RunRecord.read(folder.path)
        if run.status["state"] == "completed" and (found := warnings(run)):
            say(
                "before you trust it:\n"
                + "\n".join(
                    textwrap.fill(line, WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False)
                    for line in found
                )
            )
        say(f"the report is {page.name} in the run folder")
    except Exception as error:  # noqa: BLE001  # the results are complete and said to be so
        say(f"no report: {type(error).__name__}: {error}; fedstats report makes it again")


def _report_failure(folder: RunFolder | None, error: BaseException, *, can_continue: bool) -> None:
    """Report a failure in status, page and output, as far as these can be written."""
    reason = f"{type(error).__name__}: {error}"[:_MAX_REASON]
    state: Status = "failed"
    if isinstance(error, KeyboardInterrupt):
        state, reason = "stopped", f"stopped by {error.args[0] if error.args else 'Ctrl-C'}"
    lines = [*getattr(error, "__notes__", ())]
    # Their traceback says nothing to a user.
    hides_traceback = state == "stopped" or isinstance(error, (ValueError, OSError))
    if folder is not None:
        try:
            folder.write_status(state, reason)
            _write_report(folder)
        except OSError as second:
            lines.append(f"status.json could not be written, and may say something else: {second}")
        lines.append(f"run folder: {folder.path}")
        with suppress(OSError):
            if state == "failed":
                folder.write_traceback("".join(traceback.format_exception(error)))
                hides_traceback = True
    line = reason if state == "stopped" else f"FAILED: {reason}"
    if state == "stopped" and folder is not None:
        line += f"; the same settings with resume='{folder.path}' continue it" if can_continue else f"; {BEGINS_ANEW}"
    _end([*lines, line], LastWord(f"[fedstats] {' '.join(line.split())}", error if hides_traceback else None))


def _end(lines: Sequence[str], last: LastWord) -> None:
    """Print the last lines of a run, and the very last when Flower's process ends."""
    last.stay()
    with suppress(OSError):  # standard output may go to a full disk too
        for line in lines:
            say(line)


class LastWord(logging.Filter):
    """Says a line when Flower's process ends, in place of the traceback and the exit code that Flower would log.

    Parameters
    ----------
    line : str
        The last line that the user should see.
    error : BaseException, optional
        Why the run failed, where its traceback need not be printed: it is kept elsewhere, or the mistake is the user's.
    """

    def __init__(self, line: str, error: BaseException | None = None) -> None:
        super().__init__()
        self.line, self.error = line, error

    def stay(self) -> None:
        """Be the last word of this process, in place of any before."""
        self.forget()
        logging.getLogger("flwr").addFilter(self)

    @staticmethod
    def forget() -> None:
        """Take back the last word of this process."""
        logger = logging.getLogger("flwr")
        for earlier in [word for word in logger.filters if isinstance(word, LastWord)]:
            logger.removeFilter(earlier)

    def filter(self, record: logging.LogRecord) -> bool:
        """Print the line where Flower's process ends; return whether Flower's own record is to be logged."""
        if record.funcName == "flwr_exit":
            with suppress(OSError):
                print(self.line, flush=True)
            # What went wrong in Flower itself after a run that completed is said all the same.
            return self.error is None and record.levelno >= logging.ERROR
        return self.error is None or record.exc_info is None or record.exc_info[1] is not self.error


def how_to_stop(folder: RunFolder, context: Context) -> str:
    """Return in words how to stop a run, which Ctrl-C does in one process only, and how to go on with it afterwards."""
    own = context.node_config.get(IN_PROCESS)
    stop = "Ctrl-C stops this run" if own else f"Ctrl-C leaves this log only: `flwr stop {folder.run_id}` stops the run"
    if not can_resume(context.run_config):
        return f"{stop}; {BEGINS_ANEW}"
    if own:
        return f"{stop}, and the same settings with resume='{folder.path}' continue it"
    return f"{stop}, and the same command with resume='{folder.path}' in its --run-config continues it"


@contextmanager
def quiet_flower() -> Iterator[None]:
    """Reduce Flower's round-by-round log, which repeats the lines printed here, to warnings."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
