"""The stages of a run: the set-up, the tests, and the arms with their processes."""
