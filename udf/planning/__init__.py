"""From the options of ``prompt()`` to what a worker gets: the format of the answers, the engine, the conversation."""
