"""Shared by tests and benchmarks: problems of several regimes, and measures of error."""
