"""Who calls: the tokens of ``rest_framework.authtoken``, under either of the two words that clients send."""

from __future__ import annotations

from typing import Any

from rest_framework import authentication
from rest_framework.request import Request


class TokenAuthentication(authentication.TokenAuthentication):
    """``Authorization: Token KEY`` or ``Bearer KEY``."""

    def authenticate(self, request: Request) -> tuple[Any, Any] | None:
        self.keyword = self.authenticate_header(request)
        return super().authenticate(request)

    def authenticate_header(self, request: Request) -> str:
        """Return the word that the client sent if it is one of the two, else the first."""
        word = authentication.get_authorization_header(request).partition(b" ")[0]
        return "Bearer" if word.lower() == b"bearer" else "Token"
