"""What each release left in its tables, and whether the migrations bring it to the present."""
