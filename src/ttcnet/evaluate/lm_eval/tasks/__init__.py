"""Tasks for lm_eval that it does not have."""
