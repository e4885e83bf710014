"""Engines answer questions: a model in this process, a server, or a tree search on top of either."""
