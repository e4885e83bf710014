"""What a run does with its machine: processes and their devices, settings of torch, caches of compilers."""
