"""Compiles CUDA C++ at run time and starts it, by way of two C libraries that every CUDA build of torch brings along:
NVRTC, the compiler, and the driver. Compiled kernels are kept in the user's cache folder, so each is compiled once.
"""

from __future__ import annotations

import ctypes
import errno
import glob
import hashlib
import os
import re
import sysconfig
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from ttcnet.errors import fail
from ttcnet.machine.compile_cache import tell_unkept
from ttcnet.storage.writing import replacing

from .launch import Launch

FOLDER = Path(__file__).parent
REPORT = 'Please report it, with `ttcnet env`; backend="reference" works meanwhile.'
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: does not wait for the default stream, nor it for this one
_MOST_SHARED_BYTES = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
_ALLOW_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


@cache
def why_not() -> str | None:
    """Why kernels cannot be compiled and run here, or None if they can."""
    if not torch.cuda.is_available():
        return "torch is built without CUDA" if torch.version.cuda is None else "torch sees no CUDA device"
    if torch.version.hip is not None:
        return "the kernels are CUDA C++, and this torch is built for ROCm"
    try:
        _compiler()
    except OSError as error:
        return str(error)
    return None


def run(launch: Launch, device: torch.device, arguments: list[int | Tensor | None]) -> None:
    """Start a kernel on torch's current stream. Nothing waits for it."""
    current = torch.cuda.current_device()
    index = current if device.index is None else device.index
    if index == current:  # the usual case, without the context manager, which costs as much as the launch
        _start(launch, index, arguments)
    else:
        with torch.cuda.device(index):
            _start(launch, index, arguments)


def _start(launch: Launch, index: int, arguments: list[int | Tensor | None]) -> None:
    function = _function(launch, index)
    count = len(arguments)
    # every argument in eight bytes: numbers of four bytes are read from the lower half
    values = (ctypes.c_ulonglong * count)(
        *[x if isinstance(x, int) else 0 if x is None else x.data_ptr() for x in arguments]
    )
    base = ctypes.addressof(values)
    pointers = (ctypes.c_void_p * count)(*range(base, base + 8 * count, 8))
    # torch.cuda.current_stream() costs the host ten times that
    stream = ctypes.c_void_p(torch._C._cuda_getCurrentRawStream(index))
    size, blocks, threads = ctypes.c_uint(launch.shared_bytes), launch.blocks, launch.threads
    launching = (function, blocks, 1, 1, threads, 1, 1, size, stream, pointers, None)
    status = _driver().cuLaunchKernel(*launching)
    if status == _NO_CONTEXT:  # a thread that is new to CUDA, such as autograd's
        _enter_context(index)
        status = _driver().cuLaunchKernel(*launching)
    if status:
        fail("kernel", "must start", f"{_driver_error(status)} for {launch.kernel}", REPORT, "backend")


@cache
def most_shared_bytes(index: int) -> int:
    """Bytes of shared memory that a block can have on this device."""
    device, found = ctypes.c_int(), ctypes.c_int()
    _demand(_driver().cuDeviceGet(ctypes.byref(device), index), "find the device")
    _demand(
        _driver().cuDeviceGetAttribute(ctypes.byref(found), _MOST_SHARED_BYTES, device), "ask for its shared memory"
    )
    return found.value


def new_stream(index: int) -> int:
    """A stream of this device that torch does not manage."""
    stream = ctypes.c_void_p()
    _enter_context(index)
    _demand(_driver().cuStreamCreate(ctypes.byref(stream), _NON_BLOCKING), "make a stream")
    assert stream.value is not None
    return stream.value


def _enter_context(index: int) -> None:
    """Make torch's context of this device that of the calling thread."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _demand(_driver().cuDeviceGet(ctypes.byref(device), index), "find the device")
    _demand(_driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "find the device's context")
    _demand(_driver().cuCtxSetCurrent(context), "enter the device's context")


@cache
def _function(launch: Launch, index: int) -> ctypes.c_void_p:
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    _enter_context(index)  # the one that torch uses
    code = _binary(launch.source, launch.defines, torch.cuda.get_device_capability(index))
    _demand(_driver().cuModuleLoadData(ctypes.byref(module), code), "load the kernels")
    found = _driver().cuModuleGetFunction(ctypes.byref(function), module, launch.kernel.encode())
    _demand(found, f"find {launch.kernel}")
    if launch.shared_bytes > 48 * 1024:
        status = _driver().cuFuncSetAttribute(function, _ALLOW_SHARED_BYTES, launch.shared_bytes)
        _demand(status, f"give {launch.kernel} {launch.shared_bytes} bytes of shared memory")
    return function


@cache
def _binary(name: str, defines: tuple[tuple[str, str], ...], capability: tuple[int, int]) -> bytes:
    options = [f"--gpu-architecture=sm_{capability[0]}{capability[1]}", "--std=c++17", "--device-int128"]
    options += [f"-D{macro}={value}" for macro, value in defines]
    major, minor = ctypes.c_int(), ctypes.c_int()
    _compiler().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    source = _source(name)
    key = hashlib.sha256(source + repr((options, major.value, minor.value)).encode()).hexdigest()[:32]
    file = _cache_file(key)
    try:
        if file is not None and file.exists():
            return file.read_bytes()
    except OSError:
        pass  # not readable: compile
    code = _compile(name, source, options)
    _store(code, file)
    return code


def _cache_file(key: str) -> Path | None:
    """The path of a cached binary; None for a user without a home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ttcnet" / f"{key}.cubin"
    except RuntimeError:
        return None


def _store(code: bytes, file: Path | None) -> None:
    try:
        if file is None:
            raise OSError(errno.ENOENT, "there is no home")
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as new:
            new.write_bytes(code)
    except OSError as error:
        tell_unkept("XDG_CACHE_HOME", str(error.strerror or error))


def _source(name: str) -> bytes:
    """A file beside this one, with those that it includes written out."""
    text = (FOLDER / name).read_text("utf-8")
    whole = re.sub(r'^#include "(.+)"$', lambda found: (FOLDER / found[1]).read_text("utf-8"), text, flags=re.MULTILINE)
    return whole.encode()


def _compile(name: str, source: bytes, options: list[str]) -> bytes:
    nvrtc = _compiler()
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, name.encode(), 0, None, None)
    texts = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    status = nvrtc.nvrtcCompileProgram(program, len(options), texts)
    if status:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        fail("kernel", f"{name} must compile with {options}", f"\n{log.value.decode()}\n", REPORT, "backend")
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    code = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, code)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return code.raw


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@cache
def _compiler() -> ctypes.CDLL:
    """NVRTC of torch's CUDA version, from wherever it is installed."""
    major = str(torch.version.cuda).partition(".")[0]
    name = f"libnvrtc.so.{major}"
    folders = [f"{sysconfig.get_path('purelib')}/nvidia/*/lib", str(Path(torch.__file__).parent / "lib")]
    folders += [f"{os.environ[home]}/lib64" for home in ("CUDA_HOME", "CUDA_PATH") if home in os.environ]
    for candidate in [name, *(path for folder in folders for path in sorted(glob.glob(f"{folder}/{name}*")))]:
        try:
            return ctypes.CDLL(candidate)
        except OSError:
            continue
    remedy = "Install torch's CUDA packages (nvidia-cuda-nvrtc) or the CUDA toolkit, which have it, or set CUDA_HOME."
    fail("compiler", f"must be there as {name}", "none", remedy, "backend", OSError)


def _demand(status: int, what: str) -> None:
    if status:
        fail("CUDA driver", f"must {what}", _driver_error(status), REPORT, "backend")


def _driver_error(status: int) -> str:
    text = ctypes.c_char_p()
    _driver().cuGetErrorString(status, ctypes.byref(text))
    return f"CUDA error {status}, {text.value.decode() if text.value else 'unknown'}"
