"""The commands and their arguments. Only the standard library is imported here."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence

from fedstats_app import __version__
from fedstats_app.backbones.engine import NODE_ENGINES

_LEDGER = "node ledger"
_EXIT = "exit code: 0 if all is well, 1 if something is wrong (said in the output), 2 if there is no result"


def parsed(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the arguments; a command that hands words on to another has those that are not its own in `others`."""
    root, words = parser(), list(sys.argv[1:] if argv is None else argv)
    # A word of Flower's must not be taken for a subcommand, so this one is a command of two words.
    if words[:2] == _LEDGER.split():
        words[:2] = [_LEDGER]
    arguments, others = root.parse_known_args(words)
    if others and not hasattr(arguments, "others"):
        root.error(f"unrecognized arguments: {' '.join(others)}")
    arguments.others = others
    return arguments


def parser() -> argparse.ArgumentParser:
    """Return the parser; the chosen command's module in this package is its `command`."""
    root = argparse.ArgumentParser(prog="fedstats", description="Use the classifier of a run, and prepare runs.")
    root.add_argument("--version", action="version", version=f"fedstats-app {__version__}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _predict(commands.add_parser("predict", help="classify images or texts", description=_PREDICT, epilog=_EXIT))
    _evaluate(
        commands.add_parser(
            "evaluate", help="score a head on labelled images or texts", description=_EVALUATE, epilog=_EXIT
        )
    )
    _check(commands.add_parser("check", help="check settings before a run", description=_CHECK, epilog=_EXIT))
    _run(commands.add_parser("run", help="run the app in this process", description=_RUN, epilog=_EXIT))
    _export(commands.add_parser("export", help="write a head for other programs", description=_EXPORT, epilog=_EXIT))
    _doctor(commands.add_parser("doctor", help="check a machine before a run", description=_DOCTOR, epilog=_EXIT))
    _new(commands.add_parser("new", help="make a folder for `flwr run`", description=_NEW, epilog=_EXIT))
    _demo(commands.add_parser("demo", help="a federation on this machine, and a run", description=_DEMO, epilog=_EXIT))
    _remove(
        commands.add_parser("remove", help="take a site or a class out of a run", description=_REMOVE, epilog=_EXIT)
    )
    _report(commands.add_parser("report", help="make a run's page, or compare runs", description=_REPORT, epilog=_EXIT))
    _runs(commands.add_parser("runs", help="list runs", description=_RUNS, epilog=_EXIT))
    # Its options are not abbreviated: what is not one of them is Flower's.
    _node(commands.add_parser("node", help="run a SuperNode", description=_NODE, epilog=_FLOWER, allow_abbrev=False))
    _ledger(
        commands.add_parser(
            _LEDGER, help="show or reset what a node has answered", description=_LEDGER_HELP, epilog=_EXIT
        )
    )
    return root


_PREDICT = "Name the likeliest classes of images or texts, with their probabilities."
_EVALUATE = (
    "Accuracy, accuracy per class, confusion matrix and calibration of a head on a folder that holds one folder of "
    "images, or of text files, per class (of its part `test`, where it has folders train and test), or on parquet or "
    "CSV files (test-*.parquet, where there are such)."
)
_CHECK = (
    "Check every key and value of a run, the paths and libraries that they need, and who has the port of Flower's "
    "local SuperLink, in about a second and without starting anything; then print the command that starts the run."
)
_RUN = (
    "Run the app in this process: the same messages, results and run folder as with `flwr run . --stream`, without Ray "
    "and without a SuperLink. Settings are those of `flwr run --run-config`; of several, the last one counts."
)
_EXPORT = (
    "Write backbone and calibrated head as one ONNX file, which predicts without torch. It is compared with torch on "
    "real images or texts at once, and not written where a probability differs by more than 0.0001. Or write a folder "
    "for the Hugging Face hub."
)
_DOCTOR = (
    "Check versions, weights, data, certificates, SuperLink and disk, and say what a run would send, hold in memory "
    "and take. Nothing is downloaded and every wait is bounded."
)
_NEW = (
    "Make a folder with all settings and examples of them, in which `flwr run .` runs the installed fedstats-app. Who "
    "has a clone of its repository needs none."
)
_DEMO = (
    "Start a SuperLink and a SuperNode per site on this machine, with TLS and keys, run the app on them, and end them. "
    "Nothing leaves the machine."
)
_REMOVE = (
    "Solve the heads of a run again without some of its clients, from what it kept of each (save-client-statistics) or "
    "from what they sent once more, or without a class. The new heads are in a folder of their own; those of the old "
    "one are marked as superseded."
)
_REPORT = "Make report.html of a run folder again, from its other files; of several runs, one page that compares them."
_RUNS = "List the runs in a folder: date, status, data, backbone, methods, best accuracy and what sites sent for it."
_NODE = (
    "Run a SuperNode that answers with fedstats-app as it is installed here, whatever app the server sends; or with "
    "the apps whose SHA-256 are approved-apps in its node-config."
)
_LEDGER_HELP = (
    "Show what nodes with data of their own have answered since their data last changed. --reset forgets questions and "
    "answers: what the limits allow is allowed once more."
)
_FLOWER = "All other options are those of flower-supernode, which lists them with --help."


def _predict(command: argparse.ArgumentParser) -> None:
    _add_head(command)
    command.add_argument(
        "paths",
        nargs="*",
        metavar="PATH",
        help="image file (of a head for texts: text file, one text); folder of them, searched at all depths; table "
        "(.csv, .parquet or .jsonl), one sample a row; or - for stdin, with a path or a text on every line",
    )
    _add_columns(command)
    command.add_argument(
        "--text", action="append", default=[], metavar="TEXT", help="a text itself; may be given several times"
    )
    command.add_argument("--csv", action="store_true", help="print a CSV table instead of text")
    command.add_argument("--top", type=_at_least_one, default=5, metavar="K", help="classes per sample (default: 5)")


def _evaluate(command: argparse.ArgumentParser) -> None:
    _add_head(command)
    command.add_argument("folder", metavar="FOLDER", help="folder with one folder per class, or parquet or CSV files")
    command.add_argument(
        "--folder-levels",
        choices=("auto", "class", "domain/class"),
        default="auto",
        help="what the folders are (default: auto, classes; asks where either of two levels may be the classes)",
    )


def _export(command: argparse.ArgumentParser) -> None:
    _name_head(command)
    command.add_argument(
        "--onnx",
        nargs="?",
        const="",
        metavar="FILE",
        help="write an ONNX file (default: export/METHOD.onnx in the run folder)",
    )
    command.add_argument(
        "--hub",
        default="",
        metavar="FOLDER",
        help="write a new folder for the Hugging Face hub: card, head, preprocessing and, with --onnx, that file",
    )
    command.add_argument(
        "--licence", default="", metavar="ID", help="of the head, for the card, such as apache-2.0 (default: other)"
    )
    command.add_argument(
        "--check",
        default="",
        metavar="PATH",
        help="compare on these images or texts, named as for predict; `builtin` is all 2,000 images of the sample "
        "(default: 32 of them, or a few texts)",
    )
    _add_columns(command)
    command.set_defaults(device="cpu", batch_size=8, engine="torch")


def _add_head(command: argparse.ArgumentParser) -> None:
    """Add what both commands that predict take."""
    _name_head(command)
    command.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (default: auto)")
    command.add_argument(
        "--batch-size", type=_at_least_one, default=8, metavar="N", help="samples per forward pass (default: 8)"
    )
    command.add_argument(
        "--engine",
        choices=NODE_ENGINES,
        default="torch",
        help="what computes features: openvino is faster for many images (extra: fast; default: torch)",
    )


def _add_columns(command: argparse.ArgumentParser) -> None:
    for kind in ("image", "text"):
        command.add_argument(
            f"--{kind}-column",
            default="",
            metavar="NAME",
            help=f"column of a table's {kind}s (default: the run's, or the one with a usual name)",
        )


def _name_head(command: argparse.ArgumentParser) -> None:
    command.add_argument("run_folder", metavar="RUN_FOLDER", help="the folder whose path the run printed last")
    command.add_argument(
        "--method", metavar="NAME", help="whose head, such as fed3r (default: the most accurate one's)"
    )
    command.add_argument(
        "--weights",
        metavar="PATH",
        help="the network's weights, or a language model's folder, where they are not where the run had them",
    )
    command.add_argument("--json", action="store_true", help="print one JSON document instead of text")


def _check(command: argparse.ArgumentParser) -> None:
    command.add_argument("settings", nargs="*", metavar="SETTINGS", help="the same, without the option's name")
    _add_settings(command)
    command.add_argument("--json", action="store_true", help="print one JSON document instead of text")


def _add_settings(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "-c",
        "--run-config",
        action="append",
        default=[],
        metavar="SETTINGS",
        help="as of `flwr run . --run-config SETTINGS`: a TOML file, or KEY=VALUE words; may be given several times",
    )


def _run(command: argparse.ArgumentParser) -> None:
    command.add_argument("settings", nargs="*", metavar="SETTINGS", help="the same, without the option's name")
    _add_settings(command)
    command.add_argument(
        "--supernodes",
        type=_at_least_one,
        metavar="N",
        help="nodes that the clients are spread over (default: 2); results do not depend on it",
    )


def _doctor(command: argparse.ArgumentParser) -> None:
    _add_settings(command)
    command.add_argument("--data-path", metavar="PATH", help="this node's own data, as data-path of its node-config")
    command.add_argument(
        "--backbone-weights", default="", metavar="FILE", help="as backbone-weights of the node-config"
    )
    command.add_argument("--superlink", metavar="HOST:PORT", help="the SuperLink that SuperNodes connect to")
    command.add_argument(
        "--root-certificates", metavar="FILE", help="certificate of the authority that signed the SuperLink's"
    )
    command.add_argument(
        "--certificate", metavar="FILE", help="the SuperLink's certificate, to check it before it is started"
    )
    command.add_argument(
        "--connection", metavar="NAME", help="list SuperNodes over this SuperLink connection of Flower's config.toml"
    )
    command.add_argument(
        "--timeout", type=_positive, default=5.0, metavar="SECONDS", help="for each connection (default: 5)"
    )
    command.add_argument("--json", action="store_true", help="print one JSON document instead of text")


def _new(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", metavar="FOLDER", help="must not be there, or be empty")


def _demo(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--images",
        default="",
        metavar="FOLDER",
        help="a folder per site, in it a folder of images per class (default: three sites of the built-in sample)",
    )
    command.add_argument(
        "--dir",
        default="",
        metavar="FOLDER",
        help="for certificates, keys and logs; must not be there, and is deleted after a run that went well",
    )
    command.add_argument(
        "--port", type=_at_least_one, default=8000, help="of the SuperLink; SuperNodes take those after it"
    )
    command.add_argument("--keep", action="store_true", help="leave the federation up after the run, until Ctrl-C")


def _remove(command: argparse.ArgumentParser) -> None:
    command.add_argument("run_folder", metavar="RUN_FOLDER", help="the folder whose path the run printed last")
    what = command.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--client",
        action="append",
        default=[],
        metavar="ID",
        help="as in clients.jsonl, or RUN/ID; may be given several times",
    )
    what.add_argument(
        "--class", action="append", default=[], dest="classes", metavar="NAME", help="may be given several times"
    )
    command.add_argument(
        "--asked-again",
        default="",
        metavar="RUN_FOLDER",
        help="a later run that keeps what these clients sent it, to be subtracted (save-client-statistics)",
    )
    command.add_argument("--output-dir", default="", metavar="DIR", help="of the new folder (default: the old one's)")
    command.add_argument("--json", action="store_true", help="print one JSON document instead of text")


def _report(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "run_folders", nargs="+", metavar="RUN_FOLDER", help="the folder whose path a run printed last"
    )
    command.add_argument(
        "--output",
        metavar="FILE",
        help="page to write (default: report.html in the run folder; of several runs comparison.html here)",
    )


def _runs(command: argparse.ArgumentParser) -> None:
    command.add_argument("folder", nargs="?", metavar="FOLDER", help="folder of runs (default: ~/fedstats-runs)")
    command.add_argument("--json", action="store_true", help="print one JSON document instead of text")


def _node(command: argparse.ArgumentParser) -> None:
    command.set_defaults(others=[])
    command.add_argument("--any-app", action="store_true", help="run ANY app that the server sends, as Flower does")


def _ledger(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--state-dir",
        default="",
        metavar="FOLDER",
        help="as state-dir of the node-config (default: state in ~/.cache/fedstats)",
    )
    command.add_argument("--reset", action="store_true", help="forget questions and answers")


def _at_least_one(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.0 < number <= 600.0:
        raise argparse.ArgumentTypeError(f"must be a number above 0 and at most 600, got {text!r}")
    return number
