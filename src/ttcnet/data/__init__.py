"""Training data: fetched, brought into one form, cleared of copies and test problems, verified and sampled."""
