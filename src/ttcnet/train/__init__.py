"""Training: fine-tuning of language models (`ttcnet sft`); checkpoints and schedules, which the tasks use too."""
