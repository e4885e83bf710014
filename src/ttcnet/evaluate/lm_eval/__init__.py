"""lm-evaluation-harness, with models that have TTC layers."""
