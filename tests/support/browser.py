"""Headless chromium for tests of the page, driven by selenium; the error of a machine without it names its packages."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

from wait_until import wait_until

MISSING = (
    "tests of the page need chromium and its driver, and {} was not found. Type: "
    "sudo apt-get install chromium chromium-driver"
)
WIDTH, HEIGHT = 1200, 900
PHONE = 380


class BrowserMissing(Exception):
    """There is no chromium, or no driver of it."""


class Browser:
    """Browser with one tab. Its log and its requests are those since the last `open`."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def open(self, location: str) -> None:
        """Load a page and wait until it is live."""
        self.driver.get("about:blank")
        self.log()
        self.requests()
        self.width(WIDTH)
        self.dark(False)
        self.driver.get(location)

    def open_page(self, location: str) -> None:
        """Load the page of a store and wait until its stream of events has begun."""
        self.open(location)
        wait_until(lambda: self.text("#live") == "live" and self.text("#sentence"))

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        """Return the text of the first element, with that of parts out of view; "" without one."""
        return self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector)

    def texts(self, selector: str) -> list[str]:
        return self.run("return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)", selector)

    def names(self, selector: str, attribute: str = "data-table") -> list[str]:
        """Return an attribute of each element, sorted."""
        return sorted(
            self.run(
                "return [...document.querySelectorAll(arguments[0])].map(e => e.getAttribute(arguments[1]))",
                selector,
                attribute,
            )
        )

    def count(self, selector: str) -> int:
        return self.run("return document.querySelectorAll(arguments[0]).length", selector)

    def displays(self, selector: str) -> bool:
        """Return True if the element takes room on the page, in view or not."""
        return self.driver.find_element("css selector", selector).is_displayed()

    def click(self, selector: str) -> None:
        """Click an element as a mouse does, or fail if another one covers it."""

        def clicked() -> bool:
            element = self.driver.find_element("css selector", selector)
            try:
                self.run("arguments[0].scrollIntoView({block: 'center'})", element)
                element.click()
            except StaleElementReferenceException:  # the page has drawn it anew meanwhile
                return False
            return True

        wait_until(clicked)

    def type_into(self, selector: str, text: str) -> None:
        """Replace the value of a field by typing."""
        element = self.driver.find_element("css selector", selector)
        element.clear()
        element.send_keys(text)

    def press(self, *keys: str) -> None:
        """Press keys in the element that has the focus."""
        self.driver.switch_to.active_element.send_keys(*keys)

    def width(self, pixels: int, height: int = HEIGHT) -> None:
        """Give the page a width, as a screen of that size has it."""
        metrics = {"width": pixels, "height": height, "deviceScaleFactor": 1, "mobile": pixels < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def dark(self, on: bool) -> None:
        """Set the preference for dark colours, and that against motion: a picture shows no colour between two."""
        preferences = {"prefers-color-scheme": "dark" if on else "light", "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in preferences.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def log(self) -> list[str]:
        """Return the messages of the console since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]  # pyright: ignore[reportUnknownVariableType]

    def requests(self) -> list[str]:
        """Return the addresses that the page has asked for since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = (message for message in messages if message["method"] == "Network.requestWillBeSent")
        return [message["params"]["request"]["url"] for message in sent]

    def picture(self, path: str) -> None:
        self.driver.save_screenshot(path)


@contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser and end it. Raises BrowserMissing."""
    options = ChromeOptions()
    options.binary_location = _executable("chromium")
    arguments = ["headless=new", "disable-gpu", "disable-dev-shm-usage", "no-first-run", "hide-scrollbars"]
    arguments += ["disable-background-networking", "disable-component-update", "disable-sync", "no-proxy-server"]
    if os.geteuid() == 0:  # its sandbox cannot be made by root
        arguments.append("no-sandbox")
    for argument in arguments:
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=Service(_executable("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


def _executable(name: str) -> str:
    path = shutil.which(name) or shutil.which(name, path="/usr/bin")
    if path is None:
        raise BrowserMissing(MISSING.format(name))
    return path
