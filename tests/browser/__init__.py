"""What an operator does, done in a real browser."""
