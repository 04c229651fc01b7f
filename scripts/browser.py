#!/usr/bin/env python3
"""Whether the page of `minfer serve` can be chatted on, in headless Chromium.

    scripts/browser.py MINFER MODEL [--shots FOLDER] [--url URL]

Needs the package `playwright` and a Chromium (CHROMIUM names it; /usr/bin/chromium otherwise); without them a SKIPPED
line is printed and nothing fails, unless --need is given. With --url a running server is used, whose key is `right`.
Exit status 1 if something on the page does not work.
"""

import argparse
import contextlib
import os
import pathlib
import sys
import tempfile

from serving import Server

KEY = "right"
SIZE = {"width": 1100, "height": 800}
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]
LONG = "Write a very long story about a ship, with many details."


def hold(what, why):
    if not what:
        raise AssertionError(why)


class Page:
    """The page as a person uses it."""

    def __init__(self, page, url, shots):
        self.page, self.url, self.shots = page, url, shots
        self.requests, self.problems = [], []
        page.on("request", lambda r: self.requests.append(r.url))
        page.on("pageerror", lambda e: self.problems.append(str(e)))
        page.on("console", self.heard)

    def heard(self, message):
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.problems.append(message.text)

    def shot(self, name):
        if self.shots:
            self.page.screenshot(path=str(self.shots / f"{name}.png"))

    def open(self):
        self.page.goto(self.url)
        self.page.wait_for_selector("#dot.good, #dot.bad")

    def send(self, text):
        self.page.fill("#input", text)
        self.page.keyboard.press("Enter")
        self.page.wait_for_selector("#send.stop", timeout=5000)

    def text(self):
        bodies = self.page.query_selector_all(".message.assistant .body")
        return bodies[-1].inner_text() if bodies else ""

    def last(self):
        return self.page.query_selector_all(".message")[-1].inner_text()

    def grows(self):
        self.page.wait_for_selector(".message.assistant:last-child .body", timeout=60_000)
        before = len(self.text())
        self.page.wait_for_function(
            "n => document.querySelector('.message:last-child .body').innerText.length > n", arg=before, timeout=60_000
        )

    def rests(self):
        self.page.wait_for_selector("#send:not(.stop)", timeout=120_000)

    def settings(self, **values):
        self.page.click("#open-settings")
        for name, value in values.items():
            self.page.fill("#" + name.replace("_", "-"), str(value))
        self.page.keyboard.press("Escape")
        self.page.wait_for_selector("#settings:not([open])", state="attached")


def wrong_key(p):
    p.settings(key="wrong")
    p.send("Hello")
    p.rests()
    box = p.page.wait_for_selector(".error", timeout=10_000).inner_text()
    hold("401" in box and "request" in box, f"no error with status and request: {box}")
    p.shot("error")
    p.settings(key=KEY)
    p.page.wait_for_selector("#dot.good")
    hold(p.page.evaluate("!JSON.stringify(localStorage).includes('right')"), "the key is kept beyond the tab")


def first_answer(p):
    p.settings(max_tokens=48, temperature=0, seed=7)
    p.page.click("#new")
    p.send("What is a river?")
    p.page.wait_for_selector(".message.assistant .body", timeout=60_000)
    p.shot("streaming")
    p.rests()
    hold(p.text().strip(), "the answer is empty")
    hold("tokens" in p.last() and "seed 7" in p.last(), f"the answer does not tell its figures: {p.last()}")
    p.shot("light")


def again(p):
    before = p.text()
    p.page.click("text=Regenerate")
    p.rests()
    hold(p.text() == before, f"seed 7 gave `{before}`, then `{p.text()}`")
    hold(len(p.page.query_selector_all(".message")) == 2, "the answer was added, not replaced")


def stops(p):
    p.settings(max_tokens=2000)
    for by in ("Escape", "button"):
        p.send(LONG)
        p.grows()
        if by == "Escape":
            p.page.keyboard.press("Escape")
        else:
            p.page.click("#send")
        p.page.wait_for_selector("#send:not(.stop)", timeout=2000)
        hold("stopped by you" in p.last(), f"nothing says that it was stopped: {p.last()}")


def reload(p):
    before = p.page.inner_text("#messages")
    p.open()
    hold(p.page.inner_text("#messages") == before, "the conversation is not what it was before the reload")


def edits(p):
    n = len(p.page.query_selector_all(".message"))
    p.page.click(".message.user:nth-last-child(2) >> text=Edit")
    hold(p.page.input_value("#input") == LONG, "the message is not in the field")
    hold(len(p.page.query_selector_all(".message")) == n - 2, "the message and its answer are still there")


def hostile(p):
    """Text that would be a page's end if it were HTML."""
    evil = "<img src=x onerror=\"window.hit=1\"><script>window.hit=1</script> [a](javascript:window.hit=1)"
    p.page.evaluate(
        "t => localStorage.setItem('minfer.talk', JSON.stringify([{role: 'user', text: t}, {role: 'assistant', text: t}]))", evil
    )
    p.open()
    hold(p.page.evaluate("window.hit === undefined"), "a script of the model ran")
    hold(p.page.query_selector(".message img, .message script, .message a") is None, "the model made elements")
    hold("<img" in p.text(), "the text is not shown as it is")


TEXT = """## A river in short

A *river* is **moving water** with a bed of its own. It has `source`, course and mouth:

1. The source is where it rises.
2. The course is where it runs:
   - upper, steep and fast
   - lower, wide and slow
3. The mouth is where it ends.

```python
def speed(metres, seconds):
    return metres / seconds
```

| River | Length |
|---|---|
| Nile | 6,650 km |
| Rhine | 1,230 km |

> Nobody steps in the same one twice.
"""


def looks(p):
    p.page.evaluate(
        "t => localStorage.setItem('minfer.talk', JSON.stringify([{role: 'user', text: 'What is a river?'},"
        " {role: 'assistant', text: t, thoughts: 'Keep it short.', truth: '96 tokens · 41.5 tokens/s · seed 7'}]))", TEXT
    )
    p.open()
    for part in ("h4", "strong", "em", "ol > li", "ol ul > li", "pre code", "td", "blockquote", "details"):
        hold(p.page.query_selector(f".message.assistant {part}"), f"no {part} in the answer")
    p.shot("formats-light")
    p.page.click("#theme")
    p.shot("formats-dark")
    p.page.click("#open-settings")
    p.shot("settings-dark")
    p.page.keyboard.press("Escape")
    p.page.set_viewport_size({"width": 360, "height": 740})
    wide = p.page.evaluate("document.documentElement.scrollWidth")
    hold(wide <= 360, f"the page is {wide} pixels wide on a screen of 360")
    p.shot("narrow-dark")
    p.page.click("#theme")
    p.page.click("#new")
    p.shot("narrow-empty")
    p.page.set_viewport_size(SIZE)


STEPS = [wrong_key, first_answer, again, stops, reload, edits, hostile, looks]


def run(browser, url, shots):
    p = Page(browser.new_page(), url, shots)
    p.page.set_default_timeout(15_000)
    p.open()
    p.shot("empty")
    for step in STEPS:
        step(p)
        print(f"ok    {step.__name__}", flush=True)
    foreign = [r for r in p.requests if not r.startswith((url, "blob:", "data:"))]
    hold(not foreign, f"the page asked others: {foreign}")
    hold(not p.problems, f"the page's console: {p.problems}")
    print("ok    nobody else was asked, no error in the console")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("minfer")
    parser.add_argument("model")
    parser.add_argument("--shots", type=pathlib.Path, help="folder for screenshots")
    parser.add_argument("--url", help="a server that runs")
    parser.add_argument("--need", action="store_true", help="fail without a browser")
    options = parser.parse_args()
    chromium = os.environ.get("CHROMIUM", "/usr/bin/chromium")
    try:
        from playwright.sync_api import Error, sync_playwright
        if not os.path.exists(chromium):
            raise ImportError(f"{chromium} is missing")
    except ImportError as why:
        print(f"SKIPPED: the page was not tried: {why}")
        return 1 if options.need else 0
    if options.shots:
        options.shots.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        url = options.url
        if not url:
            server = stack.enter_context(Server(options.minfer, options.model, "-c", "4096", "--api-key", KEY))
            url = f"http://127.0.0.1:{server.port}/"
        profile = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        play = stack.enter_context(sync_playwright())
        browser = play.chromium.launch_persistent_context(profile, executable_path=chromium, headless=True, args=FLAGS, viewport=SIZE)
        stack.callback(browser.close)
        try:
            run(browser, url, options.shots)
        except (AssertionError, Error) as why:
            if options.shots:
                browser.pages[-1].screenshot(path=str(options.shots / "failed.png"))
            print(f"FAIL  {why}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
