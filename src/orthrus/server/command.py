"""`orthrus serve`: vLLM's server with every vLLM flag, running mixed steps."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import tempfile
from contextlib import suppress
from importlib.metadata import entry_points

import psutil  # type: ignore[import-untyped]

from orthrus.preload import reexec_with_preload

METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
PLUGIN = "orthrus"
PLUGIN_GROUPS = (
    "vllm.general_plugins",
    "vllm.platform_plugins",
    "vllm.io_processor_plugins",
    "vllm.stat_logger_plugins",
)


def main(argv: list[str]) -> int:
    """Serve until stopped; `argv` is what follows `orthrus serve`.

    Returns the exit status: 0 stopped, 1 the engine died, 2 a setting was refused, 130 stopped at start-up.
    """
    # vLLM's server takes both signals over once it runs.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _serve(argv)
    except KeyboardInterrupt:
        end_children()
        sys.stderr.write("orthrus serve: stopped before it was ready\n")
        return 130


def end_children(patience_s: float = 5) -> None:
    """Terminate every process that this one has started, and theirs; kill those that stay.

    An engine that is still starting does not notice that the server has gone.
    """
    children = psutil.Process().children(recursive=True)
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.terminate()
    for child in psutil.wait_procs(children, timeout=patience_s)[1]:
        with suppress(psutil.NoSuchProcess):
            child.kill()


def _serve(argv: list[str]) -> int:
    if "--no-preload" not in argv:
        reexec_with_preload()
    share_metrics()
    from pydantic import ValidationError

    from orthrus.engine.config import UnsupportedConfigError, choose_runner_generation
    from orthrus.pooling.errors import PoolingConfigError
    from orthrus.server import vllm_server
    from orthrus.server.flags import add_flags, settings

    parser = vllm_server.build_parser("orthrus serve")
    add_flags(parser)
    args = parser.parse_args(argv)
    vllm_server.resolve_model(args)
    try:
        choose_runner_generation()
        args.additional_config = settings(args)
    except ValueError as error:
        parser.error(str(error))
    allow_plugins()
    try:
        return vllm_server.run(args)
    except (UnsupportedConfigError, PoolingConfigError) as error:
        parser.error(str(error))
    except ValidationError as error:  # vLLM's own settings
        parser.error("; ".join(finding["msg"] for finding in error.errors()))


def share_metrics() -> None:
    """Give the engine's process and this one a common folder of metrics, so that /metrics shows both.

    prometheus_client looks for it when it is imported, so this comes before vLLM's import; vLLM's own
    `setup_multiprocess_prometheus` (v1/metrics/prometheus.py) would come too late for this process.
    """
    if METRICS_FOLDER not in os.environ:
        folder = tempfile.mkdtemp(prefix="orthrus-metrics-")
        os.environ[METRICS_FOLDER] = folder
        atexit.register(shutil.rmtree, folder, ignore_errors=True)


def allow_plugins() -> None:
    """Name our endpoint plugin in VLLM_PLUGINS, which vLLM demands, and keep every other plugin as it was."""
    if "VLLM_PLUGINS" in os.environ:
        names = os.environ["VLLM_PLUGINS"].split(",")
    else:
        ours_only_by_name = {point.name for point in entry_points(group="vllm.endpoint_plugins")} - {PLUGIN}
        names = [point.name for group in PLUGIN_GROUPS for point in entry_points(group=group)]
        names = [name for name in names if name not in ours_only_by_name]
    os.environ["VLLM_PLUGINS"] = ",".join(dict.fromkeys([*filter(None, names), PLUGIN]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
