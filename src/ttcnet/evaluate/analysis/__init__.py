"""Studies of models: the gain of longer horizons, the content of plans, the likelihood of given solutions."""
