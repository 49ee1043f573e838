"""Sessions of browsers that have signed in with a token: random names in a cookie, bounded in number and time."""

from __future__ import annotations

import hmac
import re
import secrets
import threading
from collections.abc import Collection
from http.cookies import CookieError, SimpleCookie

from epochlog.store.env.clock import monotonic_s

SESSION_S = 12 * 3600.0
"""Time after which a browser has to sign in again."""
MOST_SESSIONS = 256
"""Sessions at a time; a further one ends the oldest."""


class SignedIn:
    """Sessions of one port. Safe for several threads."""

    def __init__(self, tokens: Collection[str], port: int, *, secure: bool) -> None:
        """Create the sessions. tokens: each permits to sign in. secure: True for TLS."""
        self._tokens = [token.encode() for token in tokens]
        self._name = f"epochlog-{port}"  # cookies of a host are shared by all its ports
        self._pattern = re.compile(rb"%s=([\w-]+)" % self._name.encode())
        self._secure = secure
        self._lock = threading.Lock()
        self._ends: dict[str, float] = {}  # oldest first

    def sign_in(self, token: str) -> str | None:
        """Return the value of Set-Cookie for a new session; None for a wrong token."""
        given = token.encode()
        matches = [hmac.compare_digest(given, known) for known in self._tokens]  # all, so that the time tells nothing
        if True not in matches:
            return None
        name = secrets.token_urlsafe(32)
        with self._lock:
            self._ends[name] = monotonic_s() + SESSION_S
            while len(self._ends) > MOST_SESSIONS:
                del self._ends[next(iter(self._ends))]
        secure = "; Secure" if self._secure else ""
        return f"{self._name}={name}; Path=/; Max-Age={int(SESSION_S)}; HttpOnly; SameSite=Strict{secure}"

    def is_named_in(self, head: bytes) -> bool:
        """Return True if the head of a request names a session, which may have ended."""
        cookie = self._pattern.search(head)
        return cookie is not None and cookie[1].decode() in self._ends

    def knows(self, cookies: str | None) -> bool:
        """Return True if the Cookie header has a session that has not ended."""
        try:
            morsel = SimpleCookie(cookies or "").get(self._name)
        except CookieError:
            return False
        if morsel is None:
            return False
        with self._lock:
            end_s = self._ends.get(morsel.value)
            if end_s is not None and end_s <= monotonic_s():
                del self._ends[morsel.value]
                end_s = None
        return end_s is not None
