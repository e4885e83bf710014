"""Reinforcement learning by group-relative policy optimization (GRPO), with rewards from any task: `ttcnet grpo`."""
