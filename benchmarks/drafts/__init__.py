"""What guesses of tokens bring: workloads, arms, and a table."""
