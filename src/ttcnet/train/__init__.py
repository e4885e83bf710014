"""Training: what tasks have in common. Checkpoints, schedules, progress."""
