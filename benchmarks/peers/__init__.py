"""Other engines, measured as we are: each in an environment of its own, behind one contract."""
