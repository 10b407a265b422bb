"""From requests to tokens, and from tokens back to answers."""
