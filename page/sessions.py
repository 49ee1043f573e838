"""Sessions of browsers that have signed in with a token: random names in a cookie, bounded in number and time."""

from __future__ import annotations

import hmac
import re
import secrets
import threading
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie

from epochlog.store.env.clock import monotonic_s

SESSION_S = 12 * 3600.0
"""Time after which a browser has to sign in again."""
MOST_SESSIONS = 256
"""Sessions at a time. A further one ends one of the host that has most: one that made no request after it signed in, if
there is one, else the one whose last request is oldest. So nobody ends the sessions of other hosts, nor, by signing in
alone, those in use.
"""


@dataclass(slots=True)
class _Session:
    """Session with the host of its browser, the time of its end, and that of its last request; 0.0 before the first."""

    host: str
    end_s: float
    used_s: float = 0.0


class SignedIn:
    """Sessions of one port. Safe for several threads."""

    def __init__(self, tokens: Collection[str], port: int, *, secure: bool) -> None:
        """Create the sessions. tokens: each permits to sign in. secure: True for TLS."""
        self._tokens = [token.encode() for token in tokens]
        self._name = f"epochlog-{port}"  # cookies of a host are shared by all its ports
        self._pattern = re.compile(rb"%s=([\w-]+)" % self._name.encode())
        self._secure = secure
        self._lock = threading.Lock()
        self._sessions: dict[str, _Session] = {}  # oldest first

    def sign_in(self, token: str, host: str) -> str | None:
        """Return the value of Set-Cookie for a new session of a host; None for a wrong token."""
        given = token.encode()
        matches = [hmac.compare_digest(given, known) for known in self._tokens]  # all, so that the time tells nothing
        if True not in matches:
            return None
        name = secrets.token_urlsafe(32)
        with self._lock:
            while len(self._sessions) >= MOST_SESSIONS:
                del self._sessions[self._expendable()]
            self._sessions[name] = _Session(host, monotonic_s() + SESSION_S)
        secure = "; Secure" if self._secure else ""
        return f"{self._name}={name}; Path=/; Max-Age={int(SESSION_S)}; HttpOnly; SameSite=Strict{secure}"

    def is_named_in(self, head: bytes) -> bool:
        """Return True if the head of a request names a session, which may have ended."""
        cookie = self._pattern.search(head)
        return cookie is not None and cookie[1].decode() in self._sessions

    def knows(self, cookies: str | None) -> bool:
        """Return True if the Cookie header has a session that has not ended."""
        try:
            morsel = SimpleCookie(cookies or "").get(self._name)
        except CookieError:
            return False
        if morsel is None:
            return False
        with self._lock:
            session, now_s = self._sessions.get(morsel.value), monotonic_s()
            if session is not None and session.end_s <= now_s:
                del self._sessions[morsel.value]
                session = None
            if session is not None:
                session.used_s = now_s
        return session is not None

    def _expendable(self) -> str:
        """Return the session that a further one ends. The caller has the lock."""
        hosts = Counter(session.host for session in self._sessions.values())
        most = max(hosts.values())
        names = [name for name, session in self._sessions.items() if hosts[session.host] == most]
        return min(names, key=lambda name: self._sessions[name].used_s)
