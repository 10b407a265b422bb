"""Finished answers on disk: what a job that is started again need not compute."""
