"""What a store of answers tells whoever looks at it: its rows, those that failed, and a page."""
