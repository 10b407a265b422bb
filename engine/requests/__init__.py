"""What goes into the engine and what comes out of it."""
