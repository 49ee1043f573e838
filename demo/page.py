"""Picture of the page of the demo's store, by a browser of this machine if it has one."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
PICTURE_S = 60.0
SIZE = "1200,1900"
ARGUMENTS = (
    "headless=new", "disable-gpu", "disable-dev-shm-usage", "hide-scrollbars", "no-first-run", "no-proxy-server",
    "disable-background-networking", "virtual-time-budget=30000", f"window-size={SIZE}",
)  # fmt: skip


def draw_page(location: str, path: Path) -> str | None:
    """Write a PNG of the page at this moment. Return the reason why there is none; None if it is written."""
    browser = next((found_path for name in BROWSERS if (found_path := shutil.which(name))), None)
    if browser is None:
        return "there is no chromium: sudo apt-get install chromium"
    path.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="epochlog-browser-") as profile:
        arguments = [*ARGUMENTS, f"user-data-dir={profile}", f"screenshot={path.absolute()}"]
        if os.geteuid() == 0:  # its sandbox cannot be made by root
            arguments.append("no-sandbox")
        command = [browser, *(f"--{argument}" for argument in arguments), f"{location}?still"]
        try:
            subprocess.run(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=PICTURE_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{browser} has failed: {error}"
    return None if path.exists() else f"{browser} has made no picture"
