"""Training data: fetched, brought into one form, rid of copies and of test problems, verified and sampled."""
