"""Sessions of browsers: nobody who signs in again and again ends the sessions that others use."""

from __future__ import annotations

import random

import pytest

from epochlog.page import sessions
from epochlog.page.sessions import MOST_SESSIONS, SignedIn

TOKEN = "a-token-of-22-letters!"


class Browsers:
    """Sessions of one port on a clock of the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1.0
        monkeypatch.setattr(sessions, "monotonic_s", lambda: self.now_s)
        self.signed_in = SignedIn([TOKEN], 1, secure=False)

    def sign_in(self, host: str) -> str:
        self.now_s += 0.001
        cookie = self.signed_in.sign_in(TOKEN, host)
        assert cookie is not None
        return cookie.partition(";")[0]

    def uses(self, cookie: str) -> bool:
        self.now_s += 0.001
        return self.signed_in.knows(cookie)


@pytest.fixture
def browsers(monkeypatch: pytest.MonkeyPatch) -> Browsers:
    return Browsers(monkeypatch)


def test_257_sign_ins_end_no_session_that_is_used(browsers: Browsers) -> None:
    """They ended everybody's."""
    others = [browsers.sign_in(host) for host in ("a", "a", "b", "attacker")]
    assert all(map(browsers.uses, others))
    for _ in range(MOST_SESSIONS + 1):
        browsers.sign_in("attacker")
    assert all(map(browsers.uses, others))
    assert len(browsers.signed_in._sessions) == MOST_SESSIONS


def test_sessions_of_other_hosts_stay_also_if_an_attacker_uses_its_own(browsers: Browsers) -> None:
    others = [browsers.sign_in(host) for host in ("a", "b")]
    for _ in range(2 * MOST_SESSIONS):
        assert browsers.uses(browsers.sign_in("attacker"))
    assert all(map(browsers.uses, others))


def test_a_further_session_takes_the_place_of_one_of_the_host_with_most(browsers: Browsers) -> None:
    for seed in range(5):
        chance = random.Random(seed)
        cookies = [(host, browsers.sign_in(host)) for host in chance.choices("abcd", weights=[8, 4, 2, 1], k=600)]
        left = [host for host, cookie in cookies if browsers.uses(cookie)]
        assert len(left) == MOST_SESSIONS
        for host in "abcd":
            signed_in = sum(host == other for other, _ in cookies)
            assert left.count(host) == signed_in or left.count(host) >= MOST_SESSIONS // 4
        browsers.signed_in._sessions.clear()


@pytest.mark.planted
def test_ending_the_oldest_session_is_found(browsers: Browsers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SignedIn, "_expendable", lambda signed_in: next(iter(signed_in._sessions)))
    with pytest.raises(AssertionError):
        test_257_sign_ins_end_no_session_that_is_used(browsers)
