"""Find a Chromium for the tests of reports, or fetch one; run as a script by ``make test-browser``.

The places, in order: the variable BACTRIAN_BROWSER; the search path; what Playwright has downloaded; Playwright's own
download; the npm package @sparticuz/chromium, unpacked. Where none of them gives a browser that starts, the script says
why, and the tests skip.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
#: What the npm package unpacks belongs on a server without a display, and wants these too.
MORE_ARGUMENTS = ("--headless=shell", "--no-zygote", "--font-render-hinting=none")
FOLDER = Path(sys.prefix) / "browsers"  #: of the virtual environment, and removed with it
SECONDS = 60  #: limit of each download


def named():
    """The browser that the environment names; it must be there."""
    path = os.environ.get("BACTRIAN_BROWSER")
    if path and not Path(path).is_file():
        raise SystemExit(f"BACTRIAN_BROWSER is set to {path!r}, which is no file")
    return path


def on_search_path():
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def from_playwright():
    """What Playwright has downloaded for the release that is installed here."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if path and Path(path).is_file() else None


def from_npm():
    path = FOLDER / "chromium"
    return str(path) if path.is_file() else None


def starts(path):
    """Whether the browser opens a page; a file alone says little where libraries are missing."""
    from playwright.sync_api import Error, sync_playwright

    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=path, args=arguments(path), timeout=30_000)
            browser.new_page().goto("about:blank")
            browser.close()
    except Error as problem:
        print(f"{path} does not start: {problem.message.splitlines()[0]}", file=sys.stderr)
        return False
    return True


def arguments(path):
    return [*ARGUMENTS, *(MORE_ARGUMENTS if Path(path).parent == FOLDER else ())]


def find():
    """Path of a browser that is already here, or None."""
    for place in (named, on_search_path, from_playwright, from_npm):
        path = place()
        if path and starts(path):
            return path
    return None


def download():
    """Try the two downloads in turn; returns what went wrong with each."""
    problems = [_run([sys.executable, "-m", "playwright", "install", "chromium-headless-shell"])]
    if not problems[0] and find():
        return []
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        return [*problems, "npm and node are not installed"]
    FOLDER.mkdir(parents=True, exist_ok=True)
    problem = _run([npm, "install", "--no-audit", "--no-fund", "--prefix", str(FOLDER), "@sparticuz/chromium"])
    if not problem:
        script = "import c from '@sparticuz/chromium'; await c.executablePath()"
        # It unpacks into the folder for temporary files.
        problem = _run(
            [node, "--input-type=module", "-e", script], cwd=FOLDER, env={**os.environ, "TMPDIR": str(FOLDER)}
        )
    return [*problems, problem]


def _run(command, **options):
    """What went wrong, in a line; empty if nothing did."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False, **options)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return str(problem)
    if done.returncode == 0:
        return ""
    words = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return next(
        (line for line in words if line.startswith(("Error", "npm err", "npm ERR"))), words[-1] if words else "failed"
    )


def main():
    """Exit status 0 with a browser, 3 without."""
    path = find()
    if path is None:
        print("No Chromium here; trying to download one.")
        problems = download()
        path = find()
        if path is None:
            reasons = "; ".join(problem for problem in problems if problem)
            print(f"No browser could be had ({reasons}). Install Chromium or Chrome, or name one in BACTRIAN_BROWSER.")
            return 3
    print(f"Browser: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
