"""Layers: TTC, samplers of its planning horizon, and the mixers that it stands beside."""

from . import mixers
from .horizon import Fixed, PoissonLogNormal, Uniform
from .inserted import Inserted
from .ttc import TTCLayer

__all__ = ["Fixed", "Inserted", "PoissonLogNormal", "TTCLayer", "Uniform", "mixers"]
