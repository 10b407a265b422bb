"""Single parts of the engine, measured by themselves."""
