"""The commands and their arguments, as a table. Only the standard library is imported here.

The table is argparse's: `--help` takes 0.07 s of processor time more than Python itself, with typer it took 0.66 s.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from fedstats_app import __version__
from fedstats_app.backbones.engine import NODE_ENGINES
from fedstats_app.base.runs import run_named

_LEDGER, _ALLOW = "node ledger", "node allow"
_EXIT = "exit code: 0 if all is well, 1 if something is wrong (said in the output), 2 if there is no result"
_FLOWER = "All other options are those of flower-supernode, which lists them with --help."

Argument = tuple[tuple[str, ...], dict[str, Any]]


@dataclass(frozen=True)
class Command:
    """A command: where it is, its line in the list of all, its own text and arguments.

    Attributes
    ----------
    home : str
        MODULE.FUNCTION in this package, which takes the arguments and returns the exit code.
    help, description : str
        As argparse shows them.
    arguments : sequence
        For each, the names and what argparse's `add_argument` takes.
    hands_on : bool
        Whether words that it does not know are another program's.
    """

    home: str
    help: str
    description: str
    arguments: Sequence[Argument]
    hands_on: bool = False


def parsed(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the arguments; `others` has the words that a command hands on."""
    root, words = parser(), list(sys.argv[1:] if argv is None else argv)
    # A word of Flower's must not be taken for a subcommand, so this one is a command of two words.
    if (name := " ".join(words[:2])) in (_LEDGER, _ALLOW):
        words[:2] = [name]
    arguments, others = root.parse_known_args(words)
    command = COMMANDS[arguments.command]
    if others and not command.hands_on:
        # Perhaps a list of words with options in between, of which argparse reads the first part alone by itself.
        alone = argparse.ArgumentParser(f"fedstats {arguments.command}")
        _add_arguments(alone, command)
        begun = argparse.Namespace(command=arguments.command)
        arguments, others = alone.parse_known_intermixed_args(words[1:], begun)
        if others:
            root.error(f"unrecognized arguments: {' '.join(others)}")
    arguments.others = others
    return arguments


def parser() -> argparse.ArgumentParser:
    """Make the parser; the chosen command's name is its `command`."""
    root = argparse.ArgumentParser(prog="fedstats", description="Use the classifier of a run, and prepare runs.")
    root.add_argument("--version", action="version", version=f"fedstats-app {__version__}")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, entry in COMMANDS.items():
        # Options are not abbreviated where what is not one of them is another program's.
        end = _FLOWER if entry.hands_on else _EXIT
        command = commands.add_parser(
            name, help=entry.help, description=entry.description, epilog=end, allow_abbrev=not entry.hands_on
        )
        _add_arguments(command, entry)
    return root


def _add_arguments(parser: argparse.ArgumentParser, command: Command) -> None:
    for names, settings in command.arguments:
        parser.add_argument(*names, **settings)


def _at_least_one(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return int(text)


def _address(text: str) -> tuple[str, int]:
    """Split HOST:PORT; an IPv6 address stands in brackets."""
    with contextlib.suppress(ValueError):
        parts = urlsplit(f"//{text}")
        if parts.netloc == text and parts.hostname and parts.port:
            return parts.hostname, parts.port
    raise argparse.ArgumentTypeError(f"must be HOST:PORT, without https://, got {text!r}")


def _run(text: str) -> str:
    try:
        return run_named(text)
    except FileNotFoundError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _arg(name: str, metavar: str, help: str, **more: Any) -> Argument:
    """Make an argument; an option has a text, by default an empty one."""
    default = {"default": ""} if name.startswith("-") else {}
    return (name,), {"metavar": metavar, "help": help, **default, **more}


def _several(*names: str, metavar: str, help: str, **more: Any) -> Argument:
    return names, {"action": "append", "default": [], "metavar": metavar, "help": help, **more}


def _number(name: str, metavar: str, default: int | None, help: str) -> Argument:
    return _arg(name, metavar, help, type=_at_least_one, default=default)


def _flag(name: str, help: str) -> Argument:
    return (name,), {"action": "store_true", "help": help}


_JSON = _flag("--json", "print one JSON document instead of text")
_RUN = "the folder whose path the run printed last, or latest"
_RUN_FOLDER = _arg("run_folder", "RUN_FOLDER", _RUN, type=_run)
_MOVED = "the network's weights, or a language model's folder, where they are not where the run had them"
_HEAD = (
    _RUN_FOLDER,
    _arg("--method", "NAME", "whose head, such as fed3r (default: the one that the run advises)"),
    _arg("--weights", "PATH", _MOVED),
    _JSON,
)
_FAST = "what computes features: openvino is faster for many images (extra: fast; default: torch)"
_ENGINE = (
    _arg("--device", "DEVICE", "auto, cpu, cuda, cuda:N or mps (default: auto)", default="auto"),
    _number("--batch-size", "N", None, "samples per forward pass (default: by command and device)"),
    (("--engine",), {"choices": NODE_ENGINES, "default": "torch", "help": _FAST}),
)
_COLUMNS = tuple(
    _arg(f"--{kind}-column", "NAME", f"column of a table's {kind}s (default: the run's, or the one with a usual name)")
    for kind in ("image", "text")
)
_NODE_CONFIG = "as of `fedstats node`: KEY=VALUE words"
_NODES = f"{_NODE_CONFIG}; a text for each site, with its data-path; one without holds for all"
_PATHS_OF_RELEASES = "files that `fedstats release` made, each of another site"
_RUN_CONFIG = "as of `flwr run . --run-config SETTINGS`: a TOML file, or KEY=VALUE words; may be given several times"
_SETTINGS = (
    _arg("settings", "SETTINGS", "the same, without the option's name", nargs="*"),
    _several("-c", "--run-config", metavar="SETTINGS", help=_RUN_CONFIG),
)
_METHOD_AND_BACKBONE = (
    _arg("--method", "NAMES", "as method of the run-config (default: all)"),
    _arg("--backbone", "NAME", "as backbone of the run-config (default: efficientnet_lite0)"),
)
_PATHS = (
    "image file (of a head for texts: text file, one text); folder of them, searched at all depths; or table "
    "(.csv, .parquet or .jsonl), one sample a row"
)
_COVERAGE = "in place of K, as many classes as hold the right one for this share of samples: 0.9"
_LEVELS = "what the folders are (default: auto, classes; asks where either of two levels may be the classes)"
_SITES = "a folder per site, in it a folder of images per class (default: three sites of the built-in sample)"
_ONNX = "write an ONNX file (default: export/METHOD.onnx in the run folder)"
_STATE_DIR = _arg("--state-dir", "FOLDER", "as state-dir of the node-config (default: state in ~/.cache/fedstats)")
_OUTPUT_DIR = _arg("--output-dir", "DIR", "of the new folder (default: the old one's)")
COMMANDS = {
    "predict": Command(
        "predict.run",
        "classify images or texts",
        "Name the likeliest classes of images or texts, with their probabilities.",
        (
            *_HEAD,
            *_ENGINE,
            _arg("paths", "PATH", _PATHS, nargs="*"),
            *_COLUMNS,
            _several("--text", metavar="TEXT", help="a text itself; may be given several times"),
            _flag("--csv", "print a CSV table instead of text"),
            _number("--top", "K", 5, "classes per sample (default: 5)"),
            _arg("--coverage", "SHARE", _COVERAGE, type=float, default=None),
        ),
    ),
    "evaluate": Command(
        "evaluate.run",
        "score a head on labelled images or texts",
        "Accuracy, accuracy per class, confusion matrix and calibration of a head on a folder that holds one folder of "
        "images, or of text files, per class (of its part `test`, where it has folders train and test), or on parquet "
        "or CSV files (test-*.parquet, where there are such).",
        (
            *_HEAD,
            *_ENGINE,
            _arg("folder", "FOLDER", "folder with one folder per class, or parquet or CSV files"),
            (("--folder-levels",), {"choices": ("auto", "class", "domain/class"), "default": "auto", "help": _LEVELS}),
        ),
    ),
    "inspect": Command(
        "inspect.run",
        "list labels that may be wrong",
        "On a site, order its samples by the margin of their labels under a head, the most doubtful first, as a table "
        "and a page with pictures; name copies in two classes, and images unlike the others. Nothing is sent.",
        (
            _arg("data", "DATA", "as data-path of a node-config"),
            _arg("--run", "RUN_FOLDER", _RUN, type=_run, dest="run_folder", default="latest"),
            _arg("--method", "NAME", "whose head (default: fed3r)", default="fed3r"),
            _arg("--weights", "PATH", _MOVED),
            *_ENGINE,
            _arg("--out", "FILE", "page to write (default: inspect.html)", default="inspect.html"),
            _number("--top", "N", 100, "samples on the page (default: 100)"),
            _flag("--csv", "print all samples as a CSV table, and write no page"),
        ),
    ),
    "check": Command(
        "check.run",
        "check settings and this machine before a run",
        "Check every key and value of a run, the paths, libraries and certificates that they need, the SuperLink, and "
        "who has the port of Flower's local one, in about a second and without starting anything; then print the "
        "command that starts the run. With --data, also load the network and read some samples. "
        "Nothing is downloaded and every wait is bounded.",
        (
            *_SETTINGS,
            _flag("--data", "load network and data too"),
            _several("--node-config", metavar="SETTINGS", help=_NODE_CONFIG),
            _arg("--superlink", "HOST:PORT", "the SuperLink that SuperNodes connect to", type=_address, default=None),
            _arg("--root-certificates", "FILE", "certificate of the authority that signed the SuperLink's"),
            _JSON,
        ),
    ),
    "run": Command(
        "run.run",
        "run the app in this process",
        "Run the app in this process: the same messages, results and run folder as with `flwr run . --stream`, without "
        "Ray and without a SuperLink. Settings are those of `flwr run --run-config`; KEY=VALUE words override files.",
        (
            *_SETTINGS,
            _number("--supernodes", "N", None, "nodes that the clients are spread over (default: 2); same results"),
            _several("--node-config", metavar="SETTINGS", help=_NODES),
        ),
    ),
    "release": Command(
        "release.release",
        "write a site's statistics to a file",
        "Write the statistics of a folder of data to a file, as a SuperNode with this data-path would send them, under "
        "the same rules; or show what is in such a file. For `fedstats merge`, or a SuperNode's node-config `release`.",
        (
            _arg("data", "DATA", "as data-path of a node-config", nargs="?", default=""),
            _arg("--out", "FILE", "to write, such as site.fedstats"),
            _arg("--name", "NAME", "of the site (default: the file's, without its suffix)"),
            *_METHOD_AND_BACKBONE,
            _several("-c", "--run-config", metavar="SETTINGS", help=_RUN_CONFIG),
            _several("--node-config", metavar="SETTINGS", help=_NODE_CONFIG),
            _arg("--show", "FILE", "show what is in this file, and how much of single samples"),
            _JSON,
        ),
    ),
    "merge": Command(
        "release.merge",
        "make a run of sites' files",
        "Solve, score and report what the files of `fedstats release` hold, as a run over the nodes of these sites "
        "does, without a network. The sites' network, classes and statistics must fit.",
        (
            _arg("releases", "FILE", _PATHS_OF_RELEASES, nargs="+"),
            _arg("--out", "RUN", "the run folder to make", required=True),
            _arg("--test", "DATA", "score on this data, as a node's data-path (default: on nothing)"),
            *_METHOD_AND_BACKBONE,
            _several("-c", "--run-config", metavar="SETTINGS", help=_RUN_CONFIG),
        ),
    ),
    "export": Command(
        "export.run",
        "write a head for other programs",
        "Write backbone and calibrated head as one ONNX file, which predicts without torch. It is compared with torch "
        "on real images or texts at once, and not written where a probability differs by more than 0.0001. Or write a "
        "folder for the Hugging Face hub.",
        (
            *_HEAD,
            _arg("--onnx", "FILE", _ONNX, nargs="?", const="", default=None),
            _arg("--hub", "FOLDER", "write a new folder for the Hugging Face hub, with --onnx that file too"),
            _arg("--licence", "ID", "of the head, for the card, such as apache-2.0 (default: other)"),
        ),
    ),
    "new": Command(
        "new.run",
        "make a folder for `flwr run`",
        "Make a folder with all settings and examples of them, in which `flwr run .` runs the installed fedstats-app. "
        "A clone of the repository does not need one.",
        (_arg("folder", "FOLDER", "must not be there, or be empty"),),
    ),
    "demo": Command(
        "demo.run",
        "a federation on this machine, and a run",
        "Start a SuperLink and a SuperNode per site on this machine, with TLS and keys, run the app on them, and end "
        "them. Nothing leaves the machine.",
        (
            _arg("--images", "FOLDER", _SITES),
            _arg("--dir", "FOLDER", "new, for certificates, keys and logs; is deleted after a run that went well"),
            _number("--port", "PORT", 8000, "of the SuperLink; SuperNodes take those after it"),
            _flag("--keep", "leave the federation up after the run, until Ctrl-C"),
        ),
    ),
    "remove": Command(
        "run_folders.remove",
        "take sites out of a run",
        "Solve the heads of a run again without some of its clients, from what it kept of each "
        "(save-statistics = clients). The new heads are in a folder of their own; those of the old one are marked as "
        "superseded.",
        (
            _RUN_FOLDER,
            _several("--client", metavar="ID", help="as in clients.jsonl, or RUN/ID; may be given several times"),
            _OUTPUT_DIR,
            _JSON,
        ),
    ),
    "edit": Command(
        "run_folders.edit",
        "merge, rename or leave out classes of a run",
        "Solve the heads of a run again from the statistics that it kept, without asking a site, with other classes. "
        "The new heads are in a folder of their own; those of the old one are marked as superseded.",
        (
            _RUN_FOLDER,
            _several("--merge", metavar="A,B", help="classes that are one, by the first's name; several times"),
            _several("--rename", metavar="OLD=NEW", help="may be given several times"),
            _several("--drop", metavar="NAME", help="a class to leave out; may be given several times"),
            _OUTPUT_DIR,
            _JSON,
        ),
    ),
    "report": Command(
        "run_folders.report",
        "make a run's page again",
        "Make report.html of a run folder again, from its other files.",
        (_RUN_FOLDER, _arg("--output", "FILE", "page to write (default: report.html in the folder)")),
    ),
    "runs": Command(
        "run_folders.runs",
        "list runs",
        "List the runs in a folder: date, status, data, backbone, methods, best accuracy and what sites sent for it.",
        (_arg("folder", "FOLDER", "folder of runs (default: ~/fedstats-runs)", nargs="?"), _JSON),
    ),
    "node": Command(
        "node.node",
        "run a SuperNode",
        "Run a SuperNode that answers with fedstats-app as it is installed here, whatever app the server sends; or "
        "with the apps whose SHA-256 are approved-apps in its node-config.",
        (_flag("--any-app", "run ANY app that the server sends, as Flower does"),),
        hands_on=True,
    ),
    _LEDGER: Command(
        "node.ledger",
        "show or reset what a node has answered",
        "Show the releases that nodes with data of their own have made, and what else they have answered. --reset "
        "forgets which heads were scored and which secure sums answered: the limits begin anew.",
        (
            _STATE_DIR,
            _flag("--reset", "forget scored heads and secure sums"),
        ),
    ),
    _ALLOW: Command(
        "node.allow",
        "show or allow what waits for a node's owner",
        "Show what nodes with data of their own have refused since, with earlier answers, it tells of few samples or "
        "few sites, each with digits. With the first of these digits, allow it for good.",
        (
            (("digits",), {"metavar": "DIGITS", "nargs": "?", "help": "of what to allow"}),
            _STATE_DIR,
        ),
    ),
}
