"""Compiled code that cannot be kept on disk: everything works, with a message."""

import errno
import math
import os
import pwd
import stat
from importlib.util import find_spec, module_from_spec

import numpy as np
import pytest
from numba.core.caching import IndexDataCacheFile
from numba.core.dispatcher import Dispatcher

from ttcnet.lqr.kernels import nvrtc
from ttcnet.machine import compile_cache


@pytest.fixture(autouse=True)
def new():
    """Forget what was printed, as in a new process."""
    compile_cache._told.clear()


def no_folder(patched):
    """A read-only installation and no home: there numba refuses to keep compiled code."""

    def refuse(function):
        raise RuntimeError(f"cannot cache function {function.__name__!r}: no locator available for file 'loops.py'")

    patched.setattr(Dispatcher, "enable_caching", refuse)
    return "no folder is writable"


def full_disk(patched):
    def save(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    patched.setattr(IndexDataCacheFile, "load", lambda *_: None)
    patched.setattr(IndexDataCacheFile, "save", save)
    return "No space left on device"


def unreadable(patched):
    def load(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    full_disk(patched)
    patched.setattr(IndexDataCacheFile, "load", load)
    return "Permission denied"


def loops(name):
    """A module of compiled functions, imported anew."""
    spec = find_spec(name)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("trouble", [no_folder, full_disk, unreadable])
def test_planning_is_compiled_all_the_same(trouble, monkeypatch, caplog):
    reason = trouble(monkeypatch)
    faded = np.empty((2, 3), np.float32)
    loops("ttcnet.lqr.kernels.fused_cpu_loops")._fade(np.ones((2, 3), np.float32), 2, faded)
    assert faded == pytest.approx(math.exp(-2))
    assert caplog.text.count(f"compiled code cannot be kept ({reason})") == 1
    assert "set NUMBA_CACHE_DIR to a folder that can be written" in caplog.text


@pytest.mark.parametrize("trouble", [no_folder, full_disk, unreadable])
def test_sudoku_too(trouble, monkeypatch, caplog):
    reason = trouble(monkeypatch)
    assert loops("ttcnet.tasks.sudoku.solver_loops")._digit(np.int64(4)) == 3
    assert caplog.text.count(f"compiled code cannot be kept ({reason})") == 1


def test_a_compiler_that_needs_a_folder_gets_one(tmp_path, caplog):
    """Triton is such a compiler."""
    there = str(tmp_path / "cache")
    assert compile_cache.usable("TRITON_CACHE_DIR", there) == there
    assert caplog.text == ""
    (tmp_path / "file").touch()
    for folder, reason in ((str(tmp_path / "file/cache"), "Not a directory"), ("~/.triton/cache", "there is no home")):
        compile_cache._told.clear()
        other = compile_cache.usable("TRITON_CACHE_DIR", folder)
        assert os.access(other, os.W_OK)
        assert f"cannot be kept ({reason})" in caplog.text
        os.rmdir(other)


@pytest.fixture
def compiled(monkeypatch):
    """A stand-in for NVRTC, which is not installed here; it records the sources to compile."""

    class Compiler:
        def nvrtcVersion(self, *_):
            pass

    asked = []
    monkeypatch.setattr(nvrtc, "_compiler", Compiler)
    monkeypatch.setattr(nvrtc, "_compile", lambda name, *_: asked.append(name) or b"code")

    def binary():
        nvrtc._binary.cache_clear()  # a new process
        return nvrtc._binary("fused_forward.cu", (), (9, 0))

    yield binary, asked
    nvrtc._binary.cache_clear()


def test_kernels_for_cuda_are_compiled_once(compiled, tmp_path, monkeypatch, caplog):
    binary, asked = compiled
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert [binary(), binary()] == [b"code"] * 2
    assert len(asked) == 1
    [kept] = (tmp_path / "ttcnet").iterdir()
    (tmp_path / "other").touch()
    assert stat.S_IMODE(kept.stat().st_mode) == stat.S_IMODE((tmp_path / "other").stat().st_mode), "the user's umask"
    assert caplog.text == ""


def no_home(patched, _):
    def unknown(_):
        raise KeyError

    patched.delenv("XDG_CACHE_HOME", raising=False)
    patched.delenv("HOME", raising=False)
    patched.setattr(pwd, "getpwuid", unknown)
    return "there is no home"


def no_place(patched, folder):
    (folder / "file").touch()
    patched.setenv("XDG_CACHE_HOME", str(folder / "file"))
    return "Not a directory"


def no_room(patched, folder):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    patched.setenv("XDG_CACHE_HOME", str(folder))
    patched.setattr("pathlib.Path.write_bytes", full)
    return "No space left on device"


@pytest.mark.parametrize("trouble", [no_home, no_place, no_room])
def test_kernels_for_cuda_are_compiled_all_the_same(trouble, compiled, tmp_path, monkeypatch, caplog):
    binary, asked = compiled
    reason = trouble(monkeypatch, tmp_path)
    assert [binary(), binary()] == [b"code"] * 2
    assert len(asked) == 2
    assert caplog.text.count(f"compiled code cannot be kept ({reason})") == 1
    assert "set XDG_CACHE_HOME" in caplog.text
    assert not list(tmp_path.rglob("*.cubin"))
