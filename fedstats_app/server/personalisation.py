"""Stage 3 of a run: a model for every client, by each approach in turn; one that was interrupted is done again."""

from __future__ import annotations

from collections.abc import Sequence

from fedstats_app.report.personal_result import PersonalResult, approach_name
from fedstats_app.report.run_folder import RunFolder
from fedstats_app.report.state import State
from fedstats_app.report.tables import personal_table
from fedstats_app.server.personal_approaches import PersonalSession, run_approach
from fedstats_app.server.run import Run
from fedstats_app.training.personal_options import PersonalOptions

# Forward and backward pass through the backbone.
TRAINING_PASSES = 3
# Key of an entry of results.json that names its approach, which can have several entries.
_APPROACH = "approach"


def personalise(run: Run, state: State) -> State:
    """Run the approaches that the folder lacks, and compare all on what each client kept for testing."""
    options, progress = run.config.personal, run.progress
    if state.statistics is None:
        raise ValueError("personal models need the statistics of the first stage")
    session = PersonalSession(
        options=options,
        grid=run.grid,
        clients=run.trainable(state),
        statistics_request=run.statistics_strategy().request,
        heads=state.heads,
        statistics=state.statistics,
        methods=run.config.configured_methods,
        training=run.training_request(),
        backbone=run.backbone.module,
        progress=progress,
    )
    progress.say(f"personalise {options.personalise} on {len(session.clients)} clients, after {progress.elapsed}")
    finished = {approach: _finished(run.folder, approach) for approach in options.approaches}
    left = [approach for approach, made in finished.items() if not made]
    results: dict[str, PersonalResult] = {}
    _announce(session, left)
    with progress.doing("personal models", _work(options, left)) as step:
        for number, (approach, made) in enumerate(finished.items(), start=1):
            text = f"personal models, {approach} ({number} of {len(finished)})"
            step.at(step.done, text, within=_work(options, [approach]))
            if made:
                progress.say(f"personal, {approach}: was finished before")
            else:
                made = run_approach(session, approach)
                entries = {name: {_APPROACH: approach, **result.to_json()} for name, result in made.items()}
                run.folder.add_results("personal", entries)
                step.at(step.done + _work(options, [approach]))
            results |= made
    if run.config.run.plots:
        from fedstats_app.report.plots.later_stages import personal_figure
        from fedstats_app.report.plots.style import save_png

        accuracies = {approach_name(name): list(result.accuracies.values()) for name, result in results.items()}
        title = f"{run.title}, {len(session.clients)} clients"
        if any(accuracies.values()):
            save_png(personal_figure(accuracies, title), run.folder.plots_path / "personal.png")
    progress.say(f"done after {progress.elapsed}")
    print(personal_table(results.values()), flush=True)
    return state


def _finished(folder: RunFolder, approach: str) -> dict[str, PersonalResult]:
    """Read what an interrupted run has of an approach; nothing where it had not come to its end."""
    kept = folder.read_results().get("personal", {})
    return {
        name: PersonalResult.from_json(name, entry) for name, entry in kept.items() if entry.get(_APPROACH) == approach
    }


def _work(options: PersonalOptions, approaches: Sequence[str]) -> int:
    """Count the passes over every client's samples: those of training, and one to be scored."""
    return sum(TRAINING_PASSES * options.passes(approach) + 1 for approach in approaches)


def _announce(session: PersonalSession, approaches: Sequence[str]) -> None:
    """Print the size of the network that clients will train, and for how many epochs."""
    epochs = {approach: session.options.passes(approach) for approach in approaches if session.options.passes(approach)}
    if not epochs:
        return
    size = sum(part.numel() for part in (*session.backbone.parameters(), session.start.weight, session.start.bias))
    trained = ", ".join(f"{approach} {number}" for approach, number in epochs.items())
    session.progress.say(
        f"{len(session.clients)} clients train the whole network, {size:,} parameters, on "
        f"{sum(session.clients.values()):,} samples in all; epochs: {trained}"
    )
