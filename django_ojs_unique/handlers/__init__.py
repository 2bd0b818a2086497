"""Handlers: their declaration, their context, their signature."""
