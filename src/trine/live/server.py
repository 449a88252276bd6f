"""The server of the live page: on 127.0.0.1 alone, for whoever knows a random token.

Every request must name this machine in its Host header, so that no other site's page can reach the server through a
name of its own (DNS rebinding), and must carry the token. Commands are POST requests with the token in a header, which
a form of another site cannot send.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from urllib.parse import SplitResult, parse_qs, urlsplit

from trine.errors import InputError
from trine.live.state import LiveRun

HOST = "127.0.0.1"
TOKEN_HEADER = "X-Trine-Token"
#: Commands of the page, and the method of a run that each calls.
COMMANDS = ("pause", "resume", "step", "stop")
_MAX_RANK = 1 << 24
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
#: Files of the page: name, and type.
_ASSETS = {
    "/": ("live.html", "text/html; charset=utf-8"),
    "/live.js": ("live.js", "text/javascript; charset=utf-8"),
    "/live.css": ("live.css", "text/css; charset=utf-8"),
}


class LiveServer:
    """A running server; ``close`` ends it.

    Raises InputError if the port is in use.
    """

    def __init__(self, run: LiveRun, port: int = 0) -> None:
        """port: 0 for any free one."""
        self._token = secrets.token_urlsafe(24)
        try:
            self._server = _Server((HOST, port), run, self._token)
        except OSError as error:
            raise InputError(f"port {port} of {HOST} cannot be used: {error.strerror or error}", field="live") from None
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True, name="trine-live")
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_address[1])

    @property
    def token(self) -> str:
        """The token of every request."""
        return self._token

    @property
    def address(self) -> str:
        """The address of the page, with its token."""
        return f"http://{HOST}:{self.port}/?token={self._token}"

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = False

    def __init__(self, place: tuple[str, int], run: LiveRun, token: str) -> None:
        self.run, self.token = run, token
        super().__init__(place, _Handler)

    def hosts(self) -> tuple[str, str]:
        """Return the Host headers of this machine's own pages."""
        port = self.server_address[1]
        return f"{HOST}:{port}", f"localhost:{port}"


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "trine", ""
    timeout = 10

    def do_GET(self) -> None:
        """Answer with the page, its files, or the status of the run."""
        place = self._place()
        if place is None or not self._is_own_host():
            return
        query = parse_qs(place.query)
        if place.path in _ASSETS and place.path != "/":  # the same for every run
            self._send(*_asset(place.path))
            return
        if not self._has_token(query.get("token", [""])[0] or self.headers.get(TOKEN_HEADER, "")):
            return
        if place.path == "/":
            self._send(*_asset("/"))
        elif place.path == "/status":
            status = self.server.run.status(_rank(query.get("rank", ["-1"])[0]))
            self._send(json.dumps(status).encode(), "application/json")
        else:
            self._refuse(404, "no such page")

    def do_POST(self) -> None:
        """Carry out a command."""
        place = self._place()
        if place is None or not self._is_own_host() or not self._has_token(self.headers.get(TOKEN_HEADER, "")):
            return
        command = place.path.removeprefix("/")
        if command not in COMMANDS:
            self._refuse(404, "no such command")
            return
        getattr(self.server.run, command)()
        self._send(b"{}", "application/json")

    def _place(self) -> SplitResult | None:
        """Return the parts of the requested address; None after refusing one that is malformed."""
        try:
            return urlsplit(self.path)
        except ValueError:
            self._refuse(400, "malformed address")
            return None

    def _is_own_host(self) -> bool:
        if self.headers.get("Host", "") in self.server.hosts():
            return True
        self._refuse(403, "foreign Host header")
        return False

    def _has_token(self, token: str) -> bool:
        if hmac.compare_digest(token.encode(), self.server.token.encode()):
            return True
        self._refuse(403, "wrong token")
        return False

    def _refuse(self, code: int, reason: str) -> None:
        self._send(reason.encode(), "text/plain; charset=utf-8", code)

    def _send(self, body: bytes, kind: str, code: int = 200) -> None:
        self.send_response(code)
        headers = {
            "Content-Type": kind, "Content-Length": str(len(body)), "Cache-Control": "no-store",
            "Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
        }  # fmt: skip
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: stderr belongs to the command."""


def _rank(text: str) -> int:
    """Return the number of a rank; -1 for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 9 and int(text) < _MAX_RANK else -1


@cache
def _asset(path: str) -> tuple[bytes, str]:
    name, kind = _ASSETS[path]
    return files("trine.live").joinpath("assets", name).read_bytes(), kind
