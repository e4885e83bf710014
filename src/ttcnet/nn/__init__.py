"""Layers."""

from .ttc import TTCLayer

__all__ = ["TTCLayer"]
