"""A fake of `orthrus serve` for the demo's tests: the same routes, counters and trace, no model.

Vectors depend on the text only, so that a question which repeats a passage's words finds it. Run as
`python fake_server.py --port P --trace-steps FILE [--fail-start | --die-at-embedding N] [--child FILE]`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

DIMENSIONS = 64
lock = threading.Lock()
totals = {"embed": 0, "prefill": 0, "decode": 0}
steps = {"embed": 0, "generate": 0, "mixed": 0}
active = {"embed": 0, "generate": 0}
requests = {"embed": 0}


def vector(text: str) -> list[float]:
    """Hashed word counts, with a constant to keep it from zero."""
    values = [0.1] * DIMENSIONS
    for word in text.lower().split():
        values[zlib.crc32(word.strip('.,?:"').encode()) % DIMENSIONS] += 1
    return values


def record(kind: str, tokens: int) -> None:
    """Count one step of `tokens` tokens of `kind` (embed, prefill, decode) and trace it."""
    with lock:
        totals[kind] += tokens
        mix = "mixed" if all(active.values()) else "embed" if kind == "embed" else "generate"
        steps[mix] += 1
        line = {
            "step": sum(steps.values()),
            "time": time.time(),
            "budget": 256,
            "tokens": {name: tokens if name == kind else 0 for name in totals},
            "running": dict(active),
            "waiting": {"embed": 0, "generate": 0},
        }
        with options.trace_steps.open("a") as file:
            file.write(json.dumps(line) + "\n")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer(b"", "text/plain")
        elif self.path == "/metrics":
            lines = [f'orthrus:scheduled_tokens_total{{kind="{kind}"}} {n}' for kind, n in totals.items()]
            lines += [f'orthrus:steps_total{{mix="{mix}"}} {n}' for mix, n in steps.items()]
            self.answer(("\n".join(lines) + "\n").encode(), "text/plain")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        kind = "embed" if self.path == "/v1/embeddings" else "generate"
        with lock:
            active[kind] += 1
        try:
            self.embed(body) if kind == "embed" else self.chat(body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client has gone, as it may
        finally:
            with lock:
                active[kind] -= 1

    def embed(self, body: dict[str, Any]) -> None:
        requests["embed"] += 1
        if requests["embed"] == options.die_at_embedding:
            sys.stderr.write("the fake engine has died\n")
            os._exit(7)
        time.sleep(0.05)
        record("embed", 256)
        data = [
            {"object": "embedding", "index": i, "embedding": vector(text)}
            for i, text in enumerate(body["input"])
        ]
        usage = {"prompt_tokens": 256, "total_tokens": 256}
        answer = {"object": "list", "data": data, "model": body["model"], "usage": usage}
        self.answer(json.dumps(answer).encode(), "application/json")

    def chat(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        record("prefill", 12)
        for i in range(body["max_tokens"]):
            time.sleep(0.01)
            record("decode", 1)
            chunk = {
                "id": "c",
                "object": "chat.completion.chunk",
                "created": 0,
                "model": body["model"],
                "choices": [{"index": 0, "delta": {"content": f"w{i} "}, "finish_reason": None}],
            }
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")

    def answer(self, body: bytes, content_type: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--trace-steps", type=Path, required=True)
parser.add_argument("--fail-start", action="store_true")
parser.add_argument("--die-at-embedding", type=int, default=0)
parser.add_argument(
    "--child", type=Path, help="start a child that ignores SIGTERM; its pid goes to this file"
)
options = parser.parse_args()

if __name__ == "__main__":
    if options.fail_start:
        sys.exit("the fake server cannot start: no such model")
    if options.child:
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        options.child.write_text(str(subprocess.Popen([sys.executable, "-c", code]).pid))
    ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()
