"""A local page to play with a model: type a puzzle, watch it being solved, drag the horizon."""

from __future__ import annotations

import json
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from ttcnet.errors import fail

from .grid import parse
from .session import moves, plan_values
from .solver import conflicts, verdict

if TYPE_CHECKING:
    from ttcnet.models import TTCNetForCellClassification

PAGE = Path(__file__).with_name("page.html")
HORIZONS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # of the curves; all up to the last would take 5 times as long
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"


def answer(model: TTCNetForCellClassification, question: dict[str, list[str]]) -> dict[str, Any]:
    """What /solve says: moves, the exact solver's verdict, and what plans are worth over the horizon."""
    puzzle = parse(question.get("puzzle", [""])[0])
    text = question.get("horizon", ["4"])[0]
    if text not in map(str, range(HORIZONS[-1] + 1)):
        fail("horizon", f"must be between 0 and {HORIZONS[-1]}", repr(text[:40]), "Drag the slider.")
    values = plan_values(model, puzzle, HORIZONS)
    found = [] if conflicts(puzzle).any() else [vars(move) for move in moves(model, puzzle, int(text))]
    return {"moves": found, "warning": verdict(puzzle), "horizons": HORIZONS, "values": values.tolist()}


def serve(model: TTCNetForCellClassification, port: int = 8765) -> ThreadingHTTPServer:
    """A server bound to localhost, not yet running: call serve_forever()."""
    lock = Lock()  # one puzzle at a time

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            if path == "/":
                self._send(HTTPStatus.OK, "text/html; charset=utf-8", PAGE.read_bytes())
            elif path == "/solve":
                try:
                    with lock:
                        content: dict[str, Any] = answer(model, parse_qs(query))
                    self._send(HTTPStatus.OK, "application/json", json.dumps(content).encode())
                except ValueError as error:
                    self._send(HTTPStatus.BAD_REQUEST, "application/json", json.dumps({"error": str(error)}).encode())
            else:
                self._send(HTTPStatus.NOT_FOUND, "text/plain", b"There is only / and /solve.")

        def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Security-Policy", POLICY)
            with suppress(ConnectionError):  # the page is no longer there
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        value, remedy = f"{port}: {error.strerror}", "Pass --port with another number, or 0 for any that is free."
        fail("port", "must be free on this machine", value, remedy, OSError)
