"""A stock vLLM server, without Orthrus, for comparison: `python -m orthrus.server.stock MODEL [flags]`."""

from __future__ import annotations

import sys

from orthrus.preload import reexec_with_preload
from orthrus.server import vllm_server


def main(argv: list[str]) -> int:
    """Serve until stopped; `argv` holds vLLM's own flags. Returns the exit status."""
    reexec_with_preload()
    args = vllm_server.build_parser("stock vLLM").parse_args(argv)
    vllm_server.resolve_model(args)
    return vllm_server.run(args)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
