"""Ways to damage a file, each with a name: by its bytes, by what its format holds, and by what its fields say."""

import json
import os
import shutil
import struct
from pathlib import Path
from random import Random
from typing import Any

HUGE = 10**18
DIGITS = "9" * 5000
DEEP = 100_000
ODD = [None, True, -1, 0, 0.5, HUGE, float("nan"), float("inf"), "", "x", "\udcff\x1b[31m", [], [1], {}, {"a": 1}]


def garbage(random: Random) -> bytes:
    return random.randbytes(200)


BYTES = {  # by any file
    "empty": lambda content, random: b"",
    "garbage": lambda content, random: garbage(random),
    "half": lambda content, random: content[: len(content) // 2],
    "zeros": lambda content, random: b"\0" * len(content),
    "a piece of garbage": lambda content, random: _spliced(content, random),
    "utf-16": lambda content, random: b"\xff\xfe" + content[:2000].decode("latin-1").encode("utf-16-le"),
}


def _spliced(content: bytes, random: Random) -> bytes:
    place = random.randrange(len(content) // 2 + 1)
    return content[:place] + garbage(random) + content[place + 200 :]


TEXTS = {  # by any file of text
    "deep lists": "[" * DEEP + "]" * DEEP,
    "deep objects": '{"a":' * DEEP + "1" + "}" * DEEP,
    "a number": "1",
    "null": "null",
    "a string": '"x"',
    "an empty list": "[]",
    "an empty object": "{}",
    "many digits": DIGITS,
    "many digits inside": f'{{"problem": {DIGITS}, "step": {DIGITS}, "number": {DIGITS}}}',
    "not a number": "NaN",
    "a byte-order mark": "\ufeff{}",
    "many lines": "\n" * 10_000,
    "odd letters": "{\u0000\u202e\x1b]0;x\x07",
}


def bytes_of(path: Path, way: str, random: Random) -> None:
    path.write_bytes(BYTES[way](path.read_bytes(), random))


def text_of(path: Path, way: str) -> None:
    path.write_text(TEXTS[way])


def to_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def to_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("x")


def to_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def to_zeros(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def gone(path: Path) -> None:
    path.unlink()


def fields(content: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all fields of a JSON object."""
    if isinstance(content, dict):
        inner = [path for key, value in content.items() for path in fields(value, (*above, key))]
        return [*([above] if above else []), *inner]
    return [above]


def changed(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The content with another value at a path; without the field if the value is `gone`."""
    if not path:
        return value
    first, *rest = path
    if value is gone and not rest:
        return {key: one for key, one in content.items() if key != first}
    return content | {first: changed(content[first], tuple(rest), value)}


def field_of(path: Path, random: Random) -> str:
    """Put something odd into a field of a JSON file, or of a line of a JSON Lines file; returns a description."""
    lines = (
        [json.loads(line) for line in path.read_text().splitlines() if line.strip()] if path.suffix == ".jsonl" else []
    )
    content = random.choice(lines) if lines else json.loads(path.read_text())
    where, value = random.choice(fields(content)), random.choice([*ODD, gone, "digits", "deep"])
    damaged = changed(content, where, value)
    text = json.dumps(damaged).replace('"digits"', DIGITS).replace('"deep"', "[" * DEEP + "]" * DEEP)
    if lines:
        text = "".join(f"{text if line is content else json.dumps(line)}\n" for line in lines)
    path.write_text(text)
    return f"{'.'.join(map(str, where))} = {'nothing' if value is gone else repr(value)}"


def toml_of(path: Path, random: Random) -> str:
    """Put something odd into a field of a TOML file, written line by line; returns a description."""
    lines = path.read_text().splitlines()
    place = random.choice([number for number, line in enumerate(lines) if "=" in line])
    odd = ["", "nan", "inf", "-1", "0", "1.5", DIGITS, "true", '""', '"x"', "[]", "{}", "[[[[1]]]]", "2020-01-01"]
    odd += [f"{HUGE}", "[" * 3000 + "]" * 3000, '"\\u001b[31m"', '"../../../../etc"', "'\\'"]
    value, key = random.choice(odd), lines[place].partition("=")[0]
    lines[place] = random.choice([f"{key}= {value}", f"{value} = {value}", f"{key}= {value}\n{key}= {value}"])
    path.write_text("\n".join(lines))
    return lines[place][:60]


def tensors_of(path: Path, way: str, random: Random) -> str:
    """Damage a safetensors file in its header, its shapes, its types or its numbers; returns a description."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    if way.startswith("header"):
        content = path.read_bytes()
        size = struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8 : 8 + size])
        name = random.choice([key for key in header if key != "__metadata__"])
        if way == "header of another length":
            path.write_bytes(struct.pack("<Q", random.choice([0, 1, size // 2, HUGE])) + content[8:])
            return way
        text = {
            "header of a wrong type": lambda: header | {name: random.choice(ODD[3:])},
            "header of other facts": lambda: header | {"__metadata__": {"facts": random.choice([*TEXTS.values()])}},
            "header without facts": lambda: {key: header[key] for key in header if key != "__metadata__"},
            "header of wrong places": lambda: header | {name: header[name] | {"data_offsets": [0, HUGE]}},
        }[way]()
        text = json.dumps(text).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])
        return f"{way} {name}"
    with safe_open(path, "pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    name = random.choice(sorted(tensors))
    tensor = tensors[name]
    if way == "missing":
        del tensors[name]
    elif way == "extra":
        tensors["nobody.asked.for\x1b[31m.this"] = tensor.clone()
    elif way == "none":
        tensors.clear()
    else:
        tensors[name] = {
            "longer": lambda: torch.cat([tensor.flatten(), tensor.flatten()]),
            "transposed": lambda: tensor[None].contiguous(),
            "empty": lambda: tensor.flatten()[:0].clone(),
            "a scalar": lambda: tensor.flatten()[0].clone(),
            "whole numbers": lambda: tensor.to(torch.int64),
            "truth": lambda: tensor > 0,
            "complex": lambda: tensor.to(torch.complex64) if tensor.is_floating_point() else tensor.bool(),
            "not numbers": lambda: torch.full(tensor.shape, float("nan")),
        }[way]()
    save_file(tensors, path, metadata=metadata)
    return f"{way} {name}"


TENSORS = [
    "header of another length", "header of a wrong type", "header of other facts", "header without facts",
    "header of wrong places", "missing", "extra", "none", "longer", "transposed", "empty", "a scalar", "whole numbers",
    "truth", "complex", "not numbers",
]  # fmt: skip
