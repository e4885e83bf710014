"""What tests and benchmarks share: problems of several regimes, and measures of how wrong an answer is."""
