"""From a return format to a column's type, and from a model's text to a value of it."""
