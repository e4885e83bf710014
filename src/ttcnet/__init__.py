"""Planning inside language models: a layer that solves a small optimal-control problem for every token.

This module imports nothing, so that `ttcnet --help` and a bare `import ttcnet` are instant. What is where:

    ttcnet.lqr    solve and plan: linear-quadratic control problems, batched and differentiable
    ttcnet.nn     layers: horizon samplers, and mixers from attention to MesaNet under one signature
    ttcnet.tasks  sudoku: boards, files, an exact solver, a generator, symmetries and scores
"""

__version__ = "0.1.0"
