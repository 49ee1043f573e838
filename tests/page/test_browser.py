"""The page in a real browser: it says what the documents say, follows the store, and keeps to itself.

Chromium and its driver are Debian's; without them these tests fail with the packages to install.
"""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from selenium.webdriver.common.keys import Keys

import browser as browsers
import epochlog as el
import page_picture
from browser import PHONE, Browser
from epochlog.page.document import agreement_document, lanes_document, table_document
from epochlog.page.port import PagePort
from epochlog.store.env.clock import monotonic_s
from page_store import HOSTILE, PageStore, break_views, pack_orders
from wait_until import wait_until

pytestmark = [pytest.mark.local_only, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[2]
LOOPBACK = "127.0.0.1:0"
TOKEN = "a-token-of-22-letters!"
SPAN = re.compile(r"\d+(\.\d)? (ms|s|min|h)( \d+ (s|min))?\b")
NODE = "#graph-svg [data-table={}]"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        with browsers.browser() as started:
            yield started
    except browsers.BrowserMissing as error:
        pytest.fail(str(error))


@pytest.fixture
def shown(browser: Browser, page: PagePort, lake: PageStore) -> Iterator[Browser]:
    """The page of a store with a slow and a failing view. No test leaves an error in the console, or asks elsewhere."""
    break_views(lake)
    browser.open_page(page.location)
    yield browser
    assert browser.log() == []
    strange = [url for url in browser.requests() if not url.startswith(page.location) and url != "about:blank"]
    assert strange == []


def document(page: PagePort, path: str = "status.json") -> Any:
    return json.load(urllib.request.urlopen(page.location + path))


def without_times(text: str) -> str:
    return SPAN.sub("T", text)


# ---- what it says --------------------------------------------------------------------------------------------------


def test_the_sentence_is_that_of_the_document(shown: Browser, page: PagePort) -> None:
    summary = document(page)["summary"]
    assert "Held back by `by_region`: its refresh has failed for" in summary["text"]
    said = without_times(summary["text"]).replace("`", "")  # names have a style of their own
    wait_until(lambda: without_times(shown.text("#sentence")) == said)
    assert shown.texts("#sentence code") == re.findall("`(.*?)`", summary["text"])
    assert without_times(shown.text("#announced")) == said
    assert shown.run("return document.querySelector('#summary').className") == "late"


def test_the_chain_that_holds_back_stands_out(shown: Browser, page: PagePort) -> None:
    summary = document(page)["summary"]
    assert shown.names("#graph-svg .node.chain") == summary["chain"] == ["by_region", "orders", "slow"]
    assert shown.names("#graph-svg .node.held") == ["by_region", "slow"]
    assert shown.names(".edge.chain", "data-edge") == ["orders>by_region", "orders>slow"]
    assert shown.names(".edge:not(.chain)", "data-edge") == ["by_day>best_day", "orders>by_day"]
    width = "return getComputedStyle(document.querySelector(arguments[0])).strokeWidth"
    assert shown.run(width, ".edge.chain") > shown.run(width, ".edge:not(.chain)")


def test_a_box_says_when_its_table_was_committed_and_what_is_wrong(shown: Browser, page: PagePort) -> None:
    tables = {table["name"]: table for table in document(page)["tables"]}
    lines = dict(zip(shown.texts("#graph-svg .node .name"), zip(shown.texts("#graph-svg .node .small:nth-of-type(2)"),
        shown.texts("#graph-svg .node .small:nth-of-type(3)"), strict=True), strict=True))  # fmt: skip
    assert {name: line for name, (line, _) in lines.items()} == {
        name: f"committed {table['max_committed_at'][11:23]}" for name, table in tables.items()
    }
    assert re.fullmatch(r"failed · lag \d.*", lines["by_region"][1])
    assert re.fullmatch(r"lag \d.*", lines["slow"][1]) and lines["orders"][1] == "lag none"
    assert shown.names("#graph-svg .node.ill") == ["by_region"]


def test_a_commit_of_another_day_has_its_date(browser: Browser, tmp_path: Path) -> None:
    now_ms = 1_800_000_000_000

    def clock() -> int:
        return now_ms

    with el.open(tmp_path / "s", clock=clock) as store:
        table = store.create_table("t", pa.schema([("id", pa.int64())]), ["id"])
        store.create_table("empty", pa.schema([("id", pa.int64())]), ["id"])
        table.upsert(pa.table({"id": [1]}))
        now_ms += 86_400_000
        with closing(PagePort(store._handle, LOOPBACK)) as page:
            browser.open_page(page.location)
            lines = "#graph-svg [data-table={}] .small:nth-of-type(2)"
            assert browser.text(lines.format("t")) == "committed 2027-01-15 08:00:00"
            assert browser.text(lines.format("empty")) == "no commit yet"
            assert "as of 2027-01-15 08:00:00" in browser.text("#facts")


def test_its_numbers_are_those_of_the_document(shown: Browser, page: PagePort) -> None:
    shown.click("#list summary")
    wait_until(lambda: shown.count("#list-rows tr"))
    rows = shown.run(
        "return [...document.querySelectorAll('#list-rows tr')].map(r => [...r.cells].map(c => c.textContent))"
    )
    lags = dict(zip(shown.texts("#list-rows td:first-child"), shown.run(
        "return [...document.querySelectorAll('#list-rows [data-lag]')].map(c => Number(c.dataset.lag))"), strict=True
    ))  # fmt: skip
    tables = document(page)["tables"]
    assert [(row[0], int(row[2]), row[3]) for row in rows] == [
        (table["name"], table["max_committed_epoch"], table["max_committed_at"][11:23]) for table in tables
    ]
    for table in tables:
        if table["name"] in ("slow", "by_region"):
            assert 0 < lags[table["name"]] <= table["lag_ms"]
        else:
            assert lags[table["name"]] == table["lag_ms"] == 0
    titles = dict(title.split(", epoch ") for title in shown.texts("#graph-svg .node title"))
    assert titles == {table["name"]: str(table["max_committed_epoch"]) for table in tables}
    assert shown.texts("#lists [data-part=Errors] .error") == ["ZeroDivisionError: integer division or modulo by zero"]


def test_a_click_shows_a_table(shown: Browser, lake: PageStore) -> None:
    shown.click(NODE.format("best_day"))
    wait_until(lambda: shown.texts("#table pre"))
    assert shown.texts("#table pre") == [lake.store.view("best_day").sql, lake.store.view("best_day").explain()]
    assert shown.text("#table-title") == "best_day"
    epochs = shown.texts("#table [data-part=commits] td:first-child")
    assert [int(text) for text in epochs] == lake.store.table("best_day").history()["epoch"].to_pylist()
    assert shown.texts("#table [data-part=columns] td:first-child") == ["day", "cents"]
    assert "job:best_day" in shown.texts("#table [data-part=holds] td:first-child")
    shown.click("#table-close")
    wait_until(lambda: not shown.driver.find_element("id", "table").is_displayed())


def test_a_table_shows_the_packs_of_its_log(shown: Browser, lake: PageStore) -> None:
    pack_orders(lake)
    log = table_document(lake.store._handle, "orders")["log"]
    shown.click(NODE.format("orders"))
    wait_until(lambda: shown.count("#table [data-part=compactions] td"))
    assert f"{log['packed_commits']} commits in 1 pack: 1 file, " in shown.text("#table [data-part=facts]")
    assert shown.texts("#table [data-part=compactions] tbody tr:first-child td")[1:5] == [
        f"packing of {log['packed_commits']} commits", "command", "", ""
    ]  # fmt: skip


def test_two_tables_agree_at_an_epoch_and_the_page_says_why_at_no_newer_one(shown: Browser, lake: PageStore) -> None:
    shown.type_into("#one", "by_day")
    shown.type_into("#other", "slow")
    expected = agreement_document(lake.store._handle, ["by_day", "slow"])
    wait_until(lambda: shown.names("#agreement [data-epoch]", "data-epoch") == [str(expected["epoch"])])
    reasons = [without_times(why["reason"]) for why in expected["why_not"]]
    wait_until(lambda: [without_times(text) for text in shown.texts("#agreement li")] == reasons)


def test_lanes_have_commits_and_words_for_each_epoch(shown: Browser, lake: PageStore) -> None:
    with lake.store.snapshot(["by_day", "slow"], consistency="aligned"):
        shown.type_into("#one", "by_day")
        shown.type_into("#other", "slow")
        shown.run("document.querySelector('#lanes').scrollIntoView()")
        wait_until(lambda: shown.names("#lanes-svg [data-lane]", "data-lane") == ["by_day", "orders", "slow"])
    commits = shown.names("#lanes-svg .commit", "data-commit")
    epochs = lake.store.table("by_day").history()["epoch"].to_pylist()
    assert [commit for commit in commits if commit.startswith("by_day@")] == [
        f"by_day@{epoch}" for epoch in epochs[::-1]
    ]
    assert shown.count("#lanes-svg .readable") > 0
    wait_until(lambda: "cannot be read together: slow is committed through" in shown.text("#lane-words"))
    shown.run("document.querySelector('#lanes-svg').focus()")
    stretches = lanes_document(lake.store._handle, ["by_day", "slow"])["stretches"]
    assert {stretch["readable"] for stretch in stretches} == {True, False}
    shown.press(Keys.HOME)
    for stretch in stretches:
        words = shown.text("#lane-words")
        assert words.startswith(f"Epoch {stretch['first']} (")
        assert ("by_day, slow can be read together." in words) == stretch["readable"]
        assert all(without_times(why["reason"]) in without_times(words) for why in stretch["why_not"])
        shown.press(Keys.ARROW_RIGHT)
    shown.press(Keys.END)
    assert "slow is committed through" in shown.text("#lane-words")


def test_it_follows_a_commit_within_two_seconds_without_a_reload(shown: Browser, lake: PageStore) -> None:
    shown.run("window.notReloaded = true")
    epoch = lake.put(50)
    before_s = monotonic_s()
    wait_until(lambda: f"orders, epoch {epoch}" in shown.texts("#graph-svg .node title"))
    took_s = monotonic_s() - before_s
    assert took_s < 2, took_s
    assert shown.run("return window.notReloaded") is True
    lake.catch_up("slow")
    while lake.by_region.step_local(lake.refresh) is not None:
        pass
    wait_until(lambda: "it is the newest epoch" in shown.text("#sentence"))
    wait_until(lambda: not shown.count(".node.chain") and not shown.count(".edge.chain"))
    assert shown.run("return document.querySelector('#summary').className") == "fine"


def test_curves_are_drawn(shown: Browser, page: PagePort) -> None:
    wait_until(lambda: shown.count("#curves canvas") == 4)
    wait_until(lambda: len(document(page, "curves.json")["at_ms"]) >= 2)
    shown.run("document.querySelector('#curves').scrollIntoView()")
    wait_until(lambda: re.search(r"L0: \d+ segments, debt: 0 segments", shown.text("#curves figure:last-child p")))


def test_the_legends_of_curves_show_the_newest_values_and_the_table_that_has_most(
    shown: Browser, page: PagePort
) -> None:
    wait_until(lambda: len(document(page, "curves.json")["at_ms"]) >= 2)
    shown.run("document.querySelector('#curves').scrollIntoView()")
    legend = "#curves figure:last-child .u-legend"
    wait_until(lambda: re.search(r"UTC\d\d:\d\d:\d\dL0[1-9]\d*debt0$", shown.text(legend)))
    assert "--" not in shown.text("#curves")
    lagging = max(document(page)["tables"], key=lambda table: table["lag_ms"])["name"]
    wait_until(lambda: shown.text("#curves figcaption").endswith(f"(s), most at {lagging}"))


def test_a_table_that_is_dropped_while_it_is_shown_is_asked_for_no_more(shown: Browser, lake: PageStore) -> None:
    """An answer of 404 would be an error in the console."""
    lake.store.create_table("short", pa.schema([("id", pa.int64())]), ["id"])
    wait_until(lambda: shown.count(NODE.format("short")) == 1)
    shown.click(NODE.format("short"))
    wait_until(lambda: "committed epoch" in shown.text("#table-body"))
    lake.store.drop_table("short")
    wait_until(lambda: shown.text("#table-body") == "This table was dropped.")
    requests = len(shown.requests())
    lake.put(7)
    wait_until(lambda: shown.text("#facts").count(str(lake.store.last_epoch)))
    assert not [url for url in shown.requests()[requests:] if "table.json" in url]
    shown.click("#table-close")


def test_an_empty_store_says_how_to_begin(browser: Browser, tmp_path: Path) -> None:
    with el.open(str(tmp_path / "new"), durability="os") as store, closing(PagePort(store._handle, LOOPBACK)) as port:
        browser.open_page(port.location)
        wait_until(lambda: "There is no table yet" in browser.text("#graph"))
        assert not (browser.displays("#graph-box") or browser.displays("#lanes"))
        store.create_table("first", pa.schema([("id", pa.int64())]), ["id"])
        wait_until(lambda: browser.displays("#lanes") and browser.count(NODE.format("first")) == 1)
        assert not browser.displays("#none")


# ---- whom it is for ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dark", [False, True])
def test_a_phone_shows_it_without_overflow(shown: Browser, lake: PageStore, dark: bool) -> None:
    lake.fail(ValueError("x" * 3000))
    shown.width(PHONE)
    shown.dark(dark)
    shown.click("#list summary")
    shown.click(NODE.format("orders"))
    wait_until(lambda: shown.count("#table [data-part=commits] td"))
    wait_until(lambda: any("xxx" in text for text in shown.texts("#lists .error")))
    wait_until(lambda: shown.run("return document.documentElement.scrollWidth") <= PHONE)
    too_wide = shown.run(
        "return [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1"
        " && !e.closest('.box, .scroll, .unseen')).map(e => e.outerHTML.slice(0, 80))"
    )
    assert too_wide == []


@pytest.mark.parametrize("width", [PHONE, 1200])
def test_the_longest_names_and_reasons_wrap(shown: Browser, lake: PageStore, width: int) -> None:
    """No name makes the page wider, and no long text is squeezed into a column of a few letters."""
    name = "x" * 63
    lake.store.create_view(name, "SELECT day, COUNT(*) AS n FROM orders GROUP BY day", ["day"])
    lake.store.create_job("y" * 63, ["orders"], {"y" * 63: (pa.schema([("day", pa.string())]), ["day"])})
    lake.put(5)
    lake.fail(ValueError("long " * 100))
    shown.width(width)
    shown.type_into("#one", name)
    shown.type_into("#other", "slow")
    shown.click("#list summary")
    wait_until(lambda: shown.count(f"#list-rows [data-table={name}]"))
    shown.click(f"#list-rows [data-table={name}] button")
    wait_until(lambda: any("long long" in text for text in shown.texts("#lists .error")))
    wait_until(lambda: name in shown.text("#agreement-body") and "reading" not in shown.text("#table-body"))
    assert shown.run("return document.documentElement.scrollWidth") <= width
    squeezed = shown.run(
        "return [...document.querySelectorAll('td')].filter(e => e.offsetWidth < 6 * e.textContent.length"
        " && e.offsetWidth < 80 && e.offsetHeight > 40).map(e => `${e.offsetWidth}: ${e.textContent}`)"
    )
    assert squeezed == []
    heights = shown.run("return [...document.querySelectorAll('#lists tr')].map(e => e.offsetHeight)")
    assert max(heights) <= (700 if width == PHONE else 240), heights


def test_keys_alone_reach_a_table(shown: Browser) -> None:
    shown.run("document.querySelector('#search').focus()")
    focused = "return document.activeElement.getAttribute('data-table') || document.activeElement.id"
    for _ in range(5):
        if shown.run(focused) in shown.names("#graph-svg .node"):
            break
        shown.press(Keys.TAB)
    assert shown.run(focused) == "days" or shown.run(focused) in shown.names("#graph-svg .node")
    shown.press(Keys.ARROW_RIGHT)
    first = shown.run(focused)
    shown.press(Keys.ARROW_DOWN)
    second = shown.run(focused)
    assert first != second and {first, second} <= {"by_day", "by_region", "slow"}
    shown.press(Keys.ENTER)
    wait_until(lambda: shown.text("#table-title") == second and shown.run(focused) == "table-title")
    shown.driver.find_element("id", "table-close").send_keys(Keys.ENTER)
    wait_until(lambda: shown.run(focused) == second)


def test_a_screen_reader_has_names_for_everything(shown: Browser) -> None:
    label = shown.run("return document.querySelector('#graph-svg [data-table=by_region]').getAttribute('aria-label')")
    assert re.match(r"by_region: failed, committed .*, lag .*, holds the store back: its refresh has failed for", label)
    unnamed = shown.run(
        "return [...document.querySelectorAll('input, select, button, section, svg[role], [role=button]')].filter(e =>"
        " !(e.labels && e.labels.length) && !e.getAttribute('aria-label') && !e.getAttribute('aria-labelledby') &&"
        " !e.textContent.trim()).map(e => e.outerHTML.slice(0, 80))"
    )
    assert unnamed == []
    levels = shown.run("return [...document.querySelectorAll('h1, h2, h3')].map(h => Number(h.localName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1
    assert shown.run("return document.documentElement.lang") == "en"
    assert shown.count("[role=status]") >= 3 and shown.count("[role=alert]") == 1
    ids = shown.names("[id]", "id")
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("dark", [False, True])
def test_texts_have_contrast(dark: bool) -> None:
    css = (ROOT / "page" / "static" / "page.css").read_text("utf-8")
    blocks = re.findall(r":root \{(.*?)\n\s*\}", css, re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): #(\w{6});", blocks[int(dark)]))
    for ground in ("panel", "ground"):
        for ink in ("ink", "quiet", "accent", "late", "fine", "warn"):
            assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
    assert contrast(colours["late"], colours["late-ground"]) >= 4.5
    assert contrast(colours["edge"], colours["panel"]) >= 2.3


def contrast(ink: str, ground: str) -> float:
    """Return the contrast of two colours, as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(ink), luminance(ground)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_the_pictures_of_the_pages_are_of_this_page(browser: Browser, tmp_path: Path) -> None:
    """README and guide show what `page_picture` draws: the command stands in its first lines."""
    for path in page_picture.draw(tmp_path, browser, commits=3, pause_s=0.0):
        drawn, kept = path.read_bytes(), (ROOT / "docs" / "page" / path.name).read_bytes()
        assert drawn[:24] == kept[:24], "a PNG, of equal size"
        assert f"page/{path.name}" in (ROOT / "README.md").read_text("utf-8")
        assert f"page/{path.name}" in (ROOT / "docs" / "guide" / "operating.md").read_text("utf-8")


# ---- strangers and scale -------------------------------------------------------------------------------------------


def test_hostile_names_stay_text(browser: Browser, page: PagePort, lake: PageStore) -> None:
    """Markup and control characters in an error, a query, a column and a consumer are shown as they are."""
    column = "<b onmouseover=alert(3)>v</b>"
    lake.store.create_table("evil", pa.schema([("id", pa.int64()), (column, pa.string())]), ["id"])
    sql = "SELECT day, '<script>hacked = 1</script><img src=x onerror=\"hacked = 1\">' AS t FROM orders GROUP BY day"
    lake.store.create_view("evil_view", sql, ["day"])
    lake.put(60)
    lake.fail(ValueError(HOSTILE))
    browser.open_page(page.location)
    wait_until(lambda: any("onerror=alert(1)" in text for text in browser.texts("#lists .error")))
    shown_error = next(text for text in browser.texts("#lists .error") if "onerror" in text)
    assert shown_error == "ValueError: <img src=x onerror=alert(1)>\\u202e\\u0007 </script><script>alert(2)</script>"
    for name, text in (("evil", column), ("evil_view", "<script>hacked = 1</script>")):
        browser.click(NODE.format(name))
        wait_until(
            lambda name=name, text=text: browser.text("#table-title") == name and text in browser.text("#table-body")
        )
    assert browser.count("main img") == browser.count("main script") == browser.count("main b") == 0
    assert browser.run("return typeof hacked") == "undefined"
    assert browser.log() == []


def test_of_a_thousand_tables_only_those_in_view_are_drawn(browser: Browser, tmp_path: Path) -> None:
    """A large graph is folded, and unfolded only what is in view is drawn."""
    with el.open(str(tmp_path / "lake"), durability="os") as store:
        schema = pa.schema([("id", pa.int64())])
        for number in range(500):
            store.create_table(f"table_{number:03}", schema, ["id"])
        for number in range(500):
            store.create_job(f"job_{number:03}", [f"table_{number:03}"], {f"view_{number:03}": (schema, ["id"])})
        with closing(PagePort(store._handle, LOOPBACK)) as page:
            browser.open_page(page.location)
            assert re.fullmatch(r"\d+ of 1,000 shown", browser.text("#shown"))
            assert 0 < browser.count("#graph-svg .node") <= 60
            browser.type_into("#search", "view_49")
            wait_until(lambda: {f"view_49{n}" for n in range(10)} <= set(browser.names("#graph-svg .node")))
            browser.type_into("#search", " ")
            browser.click("#unfold")
            wait_until(lambda: browser.text("#shown") == "1,000 shown")
            assert 0 < browser.count("#graph-svg .node") <= 100 and browser.count("body *") < 3000
            assert browser.count(".edge") <= 100
            browser.run("const box = document.querySelector('#graph-box'); box.scrollTop = box.scrollHeight")
            wait_until(lambda: "table_499" in browser.names("#graph-svg .node"))
            assert "table_000" not in browser.names("#graph-svg .node")
            epoch = store.table("table_499").upsert(pa.table({"id": [1]}))
            wait_until(lambda: f"table_499, epoch {epoch}" in browser.texts("#graph-svg .node title"))
            browser.click("#list summary")
            wait_until(lambda: browser.count("#list-rows tr") == 100)
            browser.click("#list-more")
            wait_until(lambda: browser.count("#list-rows tr") == 200)
            assert browser.log() == []


def test_a_browser_signs_in_with_a_token(browser: Browser, lake: PageStore) -> None:
    with closing(PagePort(lake.store._handle, LOOPBACK, tokens=[TOKEN])) as page:
        browser.open(page.location)
        assert browser.driver.current_url.endswith("/sign-in")
        browser.type_into("input[name=token]", "wrong-token-wrong")
        browser.click("button")
        wait_until(lambda: browser.text("[role=alert]") == "This is not the token of the server.")
        browser.type_into("input[name=token]", TOKEN)
        browser.click("button")
        wait_until(lambda: browser.text("#live") == "live")
        assert browser.driver.current_url == page.location and TOKEN not in browser.driver.page_source
        assert browser.run("return document.cookie") == ""
        assert page._site.sessions is not None
        page._site.sessions._sessions.clear()
        page._port.listener.abort_all()
        wait_until(lambda: browser.driver.current_url.endswith("/sign-in"))


def test_a_still_page_shows_the_store_once(browser: Browser, page: PagePort, lake: PageStore) -> None:
    browser.open(f"{page.location}?still")
    wait_until(lambda: browser.text("#live") == "still" and browser.text("#sentence"))
    wait_until(lambda: browser.count("#curves canvas") == 4)
    assert f"{page.location}events" not in browser.requests()
    assert browser.log() == []


def test_the_end_of_the_server_is_shown(browser: Browser, lake: PageStore) -> None:
    page = PagePort(lake.store._handle, LOOPBACK)
    browser.open_page(page.location)
    sentence = browser.text("#sentence")
    page.close()
    wait_until(lambda: browser.text("#live") == "no events from the page's server")
    assert browser.text("#sentence") == sentence
    browser.driver.get("about:blank")


def test_a_machine_without_a_browser_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(browsers.BrowserMissing, match="apt-get install chromium chromium-driver"), browsers.browser():
        pass
