"""Layers: samplers of the planning horizon, and the mixers that TTC stands beside."""

from . import mixers
from .horizon import Fixed, PoissonLogNormal, Uniform

__all__ = ["Fixed", "PoissonLogNormal", "Uniform", "mixers"]
