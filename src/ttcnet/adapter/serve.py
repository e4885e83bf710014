"""transformers' own server for models with inserted layers: `python -m ttcnet.adapter.serve FOLDER`, with its options.

The server looks classes of models up in the module transformers by their names, where those of ours are put first.
"""

from __future__ import annotations

import sys

import transformers

from .families import FAMILIES


def main() -> None:
    from transformers.cli.transformers import main as command

    for family in FAMILIES:
        ours = family.ours[family.generator]
        setattr(transformers, ours.__name__, ours)
    sys.argv[1:1] = ["serve"]
    command()


if __name__ == "__main__":
    main()
