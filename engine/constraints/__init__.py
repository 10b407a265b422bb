"""From what an answer has to be to a grammar that enforces it, token by token."""
