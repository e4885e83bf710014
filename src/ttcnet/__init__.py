"""Planning inside language models: a layer that solves a small optimal-control problem for every token.

This module imports nothing, so that `ttcnet --help` and a bare `import ttcnet` are instant. Its parts:

    ttcnet.lqr       solve and plan: linear-quadratic control problems, batched and differentiable
    ttcnet.nn        layers: TTC, horizon samplers, and mixers from attention to MesaNet under one signature
    ttcnet.models    TTC-Net in the conventions of Hugging Face
    ttcnet.adapter   TTC layers inside pretrained models of transformers
    ttcnet.tasks     tasks for training and evaluation: Sudoku, Countdown, mathematics
    ttcnet.data      training data: fetched, cleared of copies and test problems, verified, sampled
    ttcnet.train     fine-tuning of language models; checkpoints and schedules
    ttcnet.evaluate  language models on benchmarks: answers, grades, figures with intervals
"""

__version__ = "0.1.0"
