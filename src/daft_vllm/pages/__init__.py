"""Pages of HTML that need nothing else: their style, and what they draw."""
