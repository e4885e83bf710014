"""A local page to play with a model: choose or type a puzzle, watch it settle or being solved, drag loops and horizon.

It answers this machine's browser alone: it listens on 127.0.0.1, and a request must name this address as its host, so
that no other site can have a browser ask under a name of its own (DNS rebinding). A request that does not arrive in
time is dropped, and an answer is not computed after its page has gone.
"""

from __future__ import annotations

import json
import socket
import sys
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Timer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from ttcnet.errors import fail

from .page_answers import ANSWERS, AbandonedError, answer

if TYPE_CHECKING:
    from ttcnet.models import TTCNetForCellClassification

PAGE = Path(__file__).with_name("page.html")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
NAMES = ("127.0.0.1", "localhost", "[::1]")
PATIENCE = 10.0  # seconds for a whole request to arrive, and for an answer to be taken


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a browser that closes the connection is no fault
            super().handle_error(*_)


def serve(model: TTCNetForCellClassification, port: int = 8765, patience: float = PATIENCE) -> ThreadingHTTPServer:
    """A server bound to localhost, not yet running: call serve_forever()."""
    lock = Lock()  # one puzzle at a time

    class Handler(BaseHTTPRequestHandler):
        timeout = patience  # the time that the socket waits

        def setup(self) -> None:
            super().setup()
            self.deadline = Timer(patience, self._hang_up)  # a letter now and then does not help
            self.deadline.daemon = True
            self.deadline.start()

        def parse_request(self) -> bool:
            understood = super().parse_request()
            self.deadline.cancel()
            return understood

        def finish(self) -> None:
            self.deadline.cancel()
            super().finish()

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            if not self._for_us():
                names = " or ".join(f"{name}:{self._port()}" for name in NAMES)
                self._send(HTTPStatus.FORBIDDEN, "text/plain", f"The host must be {names}.".encode())
            elif path == "/":
                self._send(HTTPStatus.OK, "text/html; charset=utf-8", PAGE.read_bytes())
            elif path in ANSWERS:
                with suppress(AbandonedError):
                    self._answer(path, query)
            else:
                known = f"There is only / and {', '.join(ANSWERS)}."
                self._send(HTTPStatus.NOT_FOUND, "text/plain", known.encode())

        def _port(self) -> int:
            server: Any = self.server
            return server.server_port

        def _for_us(self) -> bool:
            """Whether the host that the request names is this machine, at this port."""
            port = self._port()
            known = {f"{name}:{port}" for name in NAMES} | (set(NAMES) if port == 80 else set())
            given = self.headers.get_all("Host", [])
            return len(given) == 1 and given[0].strip().lower() in known

        def _answer(self, path: str, query: str) -> None:
            try:
                with lock:
                    content: dict[str, Any] = answer(path, model, parse_qs(query), self._waits)
                self._send(HTTPStatus.OK, "application/json", json.dumps(content).encode())
            except ValueError as error:
                self._send(HTTPStatus.BAD_REQUEST, "application/json", json.dumps({"error": str(error)}).encode())

        def _waits(self) -> bool:
            """Whether the browser is still connected."""
            self.connection.settimeout(0)
            try:
                return bool(self.connection.recv(1, socket.MSG_PEEK))
            except BlockingIOError:
                return True  # the connection is open and silent
            except OSError:
                return False
            finally:
                self.connection.settimeout(patience)

        def _hang_up(self) -> None:
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

        def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Security-Policy", POLICY)
            with suppress(ConnectionError, TimeoutError):  # the page is no longer there, or does not read
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    try:
        return _Server(("127.0.0.1", port), Handler)
    except OSError as error:
        value, remedy = f"{port}: {error.strerror}", "Pass --port with another number, or 0 for any that is free."
        fail("port", "must be free on this machine", value, remedy, "port")
