"""Turns the columns of a prompt into the messages that the engine takes."""
