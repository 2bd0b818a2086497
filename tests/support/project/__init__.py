"""A small project whose handlers write down what they do, for workers that run in processes of their own."""
