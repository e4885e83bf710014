"""lm_eval's own command line, with our model: python -m ttcnet.evaluate.lm_eval --model ttcnet ..."""

from lm_eval.__main__ import cli_evaluate

cli_evaluate()
