"""Turns the options of ``prompt()`` into what a worker gets: format of the answers, engine, and conversation."""
