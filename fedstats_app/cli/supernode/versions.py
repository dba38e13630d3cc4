"""Every name of Flower's that is not public and that a node uses, and a look at whether it is as the node calls it."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect

# Those with which a node has answered messages in tests; the last is the one to install.
TESTED = ("1.41.0", "1.42.0")
# By module: the names, each with the parameters that are given to it; None for what is no function.
NAMES: dict[str, dict[str, tuple[str, ...] | None]] = {
    "flwr.cli.install": {"install_from_fab": ("fab_file", "install_dir", "skip_prompt")},
    "flwr.clientapp.client_app": {"LoadClientAppError": None},
    "flwr.common.config": {
        "get_fused_config_from_fab": ("fab_file", "run"),
        "parse_config_args": ("config",),
    },
    "flwr.common.constant": {"SubStatus": None},
    "flwr.proto.runtime_pb2": {"AcquireTaskRequest": None},
    "flwr.supercore.address": {"resolve_bind_address": ("address",)},
    "flwr.supercore.app_utils": {"_pid_exists": ("pid",)},
    "flwr.supercore.auth": {"load_superexec_auth_secret": ("secret_file",)},
    "flwr.supercore.heartbeat": {
        "HeartbeatSender": ("heartbeat_fn",),
        "make_task_heartbeat_fn_http": ("client",),
    },
    "flwr.supercore.interceptors": {
        "RuntimeTokenHttpInterceptor": ("token",),
        "RuntimeVersionHttpInterceptor": ("component_name",),
        "SuperExecAuthHttpInterceptor": ("master_secret", "protected_methods"),
    },
    "flwr.supercore.object_ref": {"load_app": ("module_attribute_str", "error_type", "project_dir")},
    "flwr.supercore.retry": {"make_simple_http_retry_invoker": ()},
    "flwr.supercore.run": {"Run": None},
    "flwr.supercore.runtime": {
        "RuntimeHttpClient.from_server_address": (
            *("server_address", "insecure", "root_certificates", "interceptors", "retry_invoker"),
        ),
        "RuntimeHttpClient.AcquireTask": ("self", "request"),
        "RuntimeHttpClient.close": ("self",),
    },
    "flwr.supernode.cli": {"flower_supernode": ()},
    "flwr.supernode.cli.flower_supernode": {"_parse_args_run_supernode": ()},
    "flwr.supernode.runtime.run_clientapp": {
        "pull_task_input": ("client",),
        "push_message": ("client", "message", "context"),
        "push_task_output": ("client", "context", "sub_status", "details"),
    },
    "flwr.supernode.start_client_internal": {"get_fused_config_from_fab": ("fab_file", "run")},
}


class UnknownFlower(Exception):
    """The Flower installed here is not one that a node can work with; the message says which is."""


def check_flower() -> str:
    """Look for every name; return a warning of a version that was not tested, else "".

    Raises
    ------
    UnknownFlower
        If one is missing or takes other arguments.
    """
    version = importlib.metadata.version("flwr")
    if not all(_is_as_called(module, *entry) for module, names in NAMES.items() for entry in names.items()):
        known = " or ".join(tested.rpartition(".")[0] for tested in TESTED)
        raise UnknownFlower(f"this needs flwr {known}, found {version}: install flwr=={TESTED[-1]}")
    if version in TESTED:
        return ""
    return f"WARNING: flwr {version} was not tested with this; {' and '.join(TESTED)} were"


def _is_as_called(module: str, name: str, given: tuple[str, ...] | None) -> bool:
    try:
        found = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        if given is None:
            return True
        parameters = inspect.signature(found).parameters  # type: ignore[arg-type]  # a function, by the table
    except (ImportError, AttributeError, ValueError, TypeError):
        return False
    needed = {name for name, parameter in parameters.items() if parameter.default is parameter.empty}
    # In the same order; others only if they may be left out.
    return needed <= set(given) and [name for name in parameters if name in given] == list(given)
