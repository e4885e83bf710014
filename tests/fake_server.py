"""A chat server on localhost that answers by a script: proper answers, and all the ways to fail."""

import json
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def answer(*texts, finish="stop", logprob=None):
    """A proper answer with so many choices."""
    logprobs = None if logprob is None else {"content": [{"token": "x", "logprob": logprob}] * 2}
    choices = [{"message": {"content": text}, "finish_reason": finish, "logprobs": logprobs} for text in texts]
    return {"choices": choices, "usage": {"prompt_tokens": 7, "completion_tokens": 3 * len(texts)}}


@contextmanager
def serving(script, model="tiny"):
    """The address of a server, and the list of requests it got. `script(request, number)` gives the answer as a dict or
    as bytes, a status as an int or (int, headers), "drop" to hang up, "tear" to send half an answer, or seconds to
    stall as a float. `model` is the name of its model, or its reply about models, as a dict or as bytes."""
    models = model if isinstance(model, dict | bytes) else {"data": [{"id": model}]}
    seen, lock = [], threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            self.reply(200, models if self.path == "/v1/models" else {})

        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                seen.append(request)
                number = len(seen)
            what = script(request, number)
            if isinstance(what, float):
                time.sleep(what)
                what = answer("late")
            if what == "drop":
                self.close_connection = True
            elif what == "tear":
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self.wfile.write(b'{"choices": [')
                self.close_connection = True
            elif isinstance(what, int):
                self.reply(what, {"error": f"status {what} by script"})
            elif isinstance(what, tuple):
                self.reply(what[0], {"error": "by script"}, what[1])
            else:
                self.reply(200, what)

        def reply(self, status, content, headers=None):
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):  # the client may be gone
                self.wfile.write(body)

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

        def handle_error(self, *_):
            pass

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", seen
    finally:
        server.shutdown()
        server.server_close()
