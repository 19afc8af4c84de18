"""Headless Chromium: `from browser import Browser, need_chromium`.

It is driven by selenium over Debian's chromium-driver. Neither downloads anything.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from debian import need


def need_chromium() -> None:
    """Install Chromium and its driver if they are missing; without root, fail with the command."""
    need(("chromium", "chromedriver"), ("chromium", "chromium-driver"))


class Browser:
    """A browser with one page.

    Args:
        folder: for the profile.
    """

    def __init__(self, folder: Path) -> None:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for argument in (
            "headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "no-first-run",
            "disable-background-networking", "disable-component-update", f"user-data-dir={folder}",
        ):  # fmt: skip
            options.add_argument(f"--{argument}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = Service(shutil.which("chromedriver"))
        self.driver = webdriver.Chrome(options=options, service=service)
        self.driver.set_page_load_timeout(30)
        self.size(1280, 900)

    def size(self, width: int, height: int) -> None:
        """Set the size of the page in px."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def theme(self, name: str) -> None:
        """Set the user's preference: `light` or `dark`."""
        feature = {"name": "prefers-color-scheme", "value": name}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def run(self, script: str, *args: Any) -> Any:
        """Run JavaScript in the page."""
        return self.driver.execute_script(script, *args)

    def settle(self, milliseconds: int = 0) -> None:
        """Wait for the timers of the page that end until then."""
        self.driver.execute_async_script("setTimeout(arguments[1], arguments[0])", milliseconds)

    @property
    def requests(self) -> list[str]:
        """The addresses that were requested since the last call."""
        found = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(message["params"]["request"]["url"])
            if message["method"] == "Network.webSocketCreated":
                found.append(message["params"]["url"])
        return found

    @property
    def messages(self) -> list[str]:
        """The messages of the console since the last call: errors, and what the page printed."""
        return [entry["message"] for entry in self.driver.get_log("browser")]
