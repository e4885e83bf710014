"""python -m ttcnet.cli: for accelerate launch, which starts modules."""

from . import app

app()
