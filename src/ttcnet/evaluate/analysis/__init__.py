"""Studies: what a longer horizon buys, what plans hold, how likely a model finds given solutions."""
