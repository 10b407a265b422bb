"""How an engine is started: its settings, its devices, its environment."""
