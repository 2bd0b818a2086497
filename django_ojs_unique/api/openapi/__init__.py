"""The OpenAPI document, and the descriptions that it is built from."""
