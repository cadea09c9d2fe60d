"""One ASGI middleware in front of every route: API key, request size, overload, and a server that ends.

vLLM's own key check covers some path prefixes only (entrypoints/serve/middleware/authenticate.py); this one
covers every path but a short list of public ones, so a new route is guarded before anyone thinks of it.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from orthrus.server.errors import error_body

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

PUBLIC_PATHS = frozenset({"/health", "/ping", "/metrics", "/version"})
RETRY_AFTER_S = 1


class Guard:
    """`max_body_bytes` bounds one request, `max_requests` all that are open; no `keys`, no check.

    `unavailable` says why no request can be taken now (status 503), or None.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: tuple[str, ...],
        max_body_bytes: int,
        max_requests: int,
        unavailable: Callable[[], str | None],
    ) -> None:
        self._app = app
        self._keys = [hashlib.sha256(key.encode()).digest() for key in keys]
        self._max_body_bytes = max_body_bytes
        self._max_requests = max_requests
        self._unavailable = unavailable
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or self._is_public(scope):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if self._keys and not self._has_key(headers):
            await self._refuse(scope, receive, send, 401, "a valid API key is required (Bearer)")
            return
        reason = self._unavailable()
        if reason is not None:
            await self._refuse(scope, receive, send, 503, reason, {"Connection": "close"})
            return
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._max_body_bytes:
            await self._refuse(scope, receive, send, 413, self._too_large(int(length)))
            return
        if self._requests >= self._max_requests:
            message = f"the server already works on {self._max_requests} requests; try again later"
            await self._refuse(scope, receive, send, 429, message, {"Retry-After": str(RETRY_AFTER_S)})
            return
        self._requests += 1
        is_answered = False

        async def noted(message: Message) -> None:
            nonlocal is_answered
            is_answered = True
            await send(message)

        try:
            await self._app(scope, self._bounded(receive), noted)
        except Exception:
            # What a request needs on its way to the engine ends at the same time (vLLM's tokenizer threads).
            reason = self._unavailable()
            if reason is None or is_answered:
                raise
            await self._refuse(scope, receive, send, 503, reason, {"Connection": "close"})
        finally:
            self._requests -= 1

    @staticmethod
    def _is_public(scope: Scope) -> bool:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        return scope.get("method") == "OPTIONS" or path in PUBLIC_PATHS

    def _has_key(self, headers: Headers) -> bool:
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = hashlib.sha256(key.encode()).digest()
        matches = [secrets.compare_digest(given, known) for known in self._keys]
        return scheme.lower() == "bearer" and any(matches)

    def _bounded(self, receive: Receive) -> Receive:
        seen = 0

        async def bounded() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > self._max_body_bytes:
                raise HTTPException(413, self._too_large(seen))
            return message

        return bounded

    def _too_large(self, size: int) -> str:
        return f"the request body has {size} bytes; at most {self._max_body_bytes} are allowed"

    @staticmethod
    async def _refuse(
        scope: Scope,
        receive: Receive,
        send: Send,
        status: int,
        message: str,
        headers: dict[str, str] | None = None,
    ) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": message[:120]})
            return
        answer = JSONResponse(error_body(message, status), status_code=status, headers=headers)
        await answer(scope, receive, send)
