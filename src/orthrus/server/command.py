"""`orthrus serve`: vLLM's server with every vLLM flag, running mixed steps."""

from __future__ import annotations

import os
import signal
import sys
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from orthrus.preload import reexec_with_preload
from orthrus.server.startup import STOPPED, STOPPED_STATUS, end_children, share_metrics

if TYPE_CHECKING:
    from pydantic import ValidationError

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
        sys.stderr.write(STOPPED)
        return STOPPED_STATUS


def _serve(argv: list[str]) -> int:
    if "--no-preload" not in argv:
        reexec_with_preload()
    share_metrics()
    from pydantic import ValidationError

    from orthrus.engine import process_end
    from orthrus.engine.config import UnsupportedConfigError, choose_runner_generation
    from orthrus.pooling.errors import PoolingConfigError
    from orthrus.server import vllm_server
    from orthrus.server.flags import add_flags, settings

    process_end.install(server=True)
    parser = vllm_server.build_parser("orthrus serve")
    add_flags(parser)
    args = parser.parse_args(argv)
    vllm_server.resolve_model(args)
    try:
        choose_runner_generation()
        args.additional_config = settings(args)
    except ValidationError as error:
        parser.error(findings(error))
    except ValueError as error:
        parser.error(str(error))
    allow_plugins()
    try:
        return vllm_server.run(args)
    except (UnsupportedConfigError, PoolingConfigError) as error:
        parser.error(str(error))
    except ValidationError as error:  # vLLM's own settings
        parser.error(findings(error))


def findings(error: ValidationError) -> str:
    """What pydantic found, in one line."""
    return "; ".join(
        ": ".join([*map(str, finding["loc"]), finding["msg"].removeprefix("Value error, ")])
        for finding in error.errors()
    )


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
