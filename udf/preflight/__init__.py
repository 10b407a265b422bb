"""What can be found wrong with a model before it is loaded."""
