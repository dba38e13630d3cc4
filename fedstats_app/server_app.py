"""The ServerApp: the stages of a run in their order. It does no mathematics."""

from __future__ import annotations

from fedstats_app.base.threads import lasting_imports  # first: it must come before torch

# isort: split

import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

with lasting_imports():
    from fedstats_app.base.progress import Progress, print_any_text
    from fedstats_app.server.lifetime import how_to_stop, lifetime, quiet_flower

if TYPE_CHECKING:
    from fedstats_app.report.state import State
    from fedstats_app.server.run import Run

# Ray's advice about a variable of its own would be in the first lines that a newcomer reads.
warnings.filterwarnings("ignore", "Tip: In future versions of Ray", FutureWarning)
app = ServerApp()


def stages(run: Run) -> list[Callable[[Run, State], State]]:
    """List the stages of a run in order; each uses the one before and is imported only if the run needs it."""
    from fedstats_app.server.closed_form import solve_heads

    chosen: list[Callable[[Run, State], State]] = [solve_heads]
    if run.config.trainer:
        from fedstats_app.server.fine_tuning import fine_tune, given_heads

        chosen.append(partial(fine_tune, trainer=run.config.trainer, given=given_heads(run)))
    return chosen


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all stages; whatever goes wrong is in the last line printed and in the run folder's status."""
    print_any_text()
    with lifetime(context) as (config, folder, ledger):
        progress = Progress()
        progress.say(how_to_stop(folder, context))
        with progress.heartbeat():
            with lasting_imports():  # of torch, which takes longer than all until here
                from fedstats_app.report.state import State
                from fedstats_app.server import closed_form  # noqa: F401
                from fedstats_app.server.run import prepare
            run = prepare(config, folder, grid, progress, ledger.note)
            state = State()
            with quiet_flower():
                for stage in stages(run):
                    state = stage(run, state)
