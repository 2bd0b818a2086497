"""What is specific to databases: only this code asks which vendor a database has."""
