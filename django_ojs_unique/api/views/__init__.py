"""The endpoints, a module for each chapter of the binding."""
