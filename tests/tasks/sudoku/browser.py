"""A person at a page: Chromium without a window, driven through a pipe, which needs no package beside it."""

import json
import os
import shutil
import subprocess
import time
from contextlib import contextmanager

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    """An open page, used by keyboard and mouse, not by the page's own script."""

    def __init__(self, questions, answers):
        self.questions, self.answers, self.number, self.session = questions, answers, 0, {}

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters} | self.session
        os.write(self.questions, json.dumps(message).encode() + b"\0")
        while True:
            text = b""
            while not text.endswith(b"\0"):
                piece = os.read(self.answers, 1)
                assert piece, "the browser has ended"
                text += piece
            found = json.loads(text[:-1])
            if found.get("id") == self.number:
                assert "result" in found, found
                return found["result"]

    def open(self, address):
        target = self.call("Target.createTarget", url=address)["targetId"]
        self.session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}

    def value(self, script):
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        return found["result"].get("value")

    def wait(self, script, seconds=60):
        end = time.monotonic() + seconds
        while not self.value(script):
            assert time.monotonic() < end, f"{script} stayed false: {self.value('document.body.innerText')}"
            time.sleep(0.05)

    def click(self, selector):
        box = f"(r => [r.x + r.width / 2, r.y + r.height / 2])(document.querySelector('{selector}')"
        x, y = self.value(f"{box}.getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def press(self, key, code):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)


@contextmanager
def browser(folder):
    """A Page whose browser keeps its files in `folder`."""
    read, questions = os.pipe()
    answers, write = os.pipe()
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
    options += ["--window-size=1200,1000", f"--user-data-dir={folder}"]
    command = ["bash", "-c", f'exec "$0" "$@" 3<&{read} 4>&{write}', BROWSER, *options]
    process = subprocess.Popen(command, pass_fds=(read, write), stderr=subprocess.DEVNULL)
    os.close(read)
    os.close(write)
    page = Page(questions, answers)
    try:
        yield page
        page.session = {}
        page.call("Browser.close")
        process.wait(20)
    finally:
        process.kill()
        process.wait()
        os.close(questions)
        os.close(answers)
