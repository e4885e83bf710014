"""One folder for each published table: the code that makes it, its settings, its results and its questions."""
