"""Files of the package: read with clear errors, written whole or not at all, locked, and tensors without pickle."""
