"""From the columns of a prompt to the messages that the engine takes."""
