"""Make the pictures of the README from real runs: `make pictures`.

    python docs/pictures/make.py REPORT

`shell.svg` shows commands with what they print. `report.png` is the report that the demo has left at REPORT, as
Chromium shows it.
"""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

FOLDER = Path(__file__).parent
MOST_BYTES = 150_000
COLUMNS = 96
SIZE, SCALE = (920, 1600), 0.75
"""Of the report's picture: in pixels of the page, its figures, its checks and the first plot; and how much smaller."""

COMMANDS = (
    "lakemq init",
    "lakemq topics create clicks --partitions 4",
    """printf '{"user": "%s", "page": "/tea"}\\n' ann bob cleo ann > clicks.jsonl""",
    "lakemq publish --topic clicks --key-column user < clicks.jsonl",
    "lakemq fetch clicks",
    "lakemq consume clicks --group shop --until-end --output json | wc -l",
    'lakemq sql "SELECT partition, count(*) AS clicks FROM log_committed GROUP BY partition"',
)


def main() -> int:
    report = Path(sys.argv[1]).resolve()
    (FOLDER / "shell.svg").write_text(draw_shell(), encoding="utf-8")
    photograph(report, FOLDER / "report.png")
    large = [path.name for path in FOLDER.iterdir() if path.stat().st_size > MOST_BYTES]
    if large:
        print(f"larger than {MOST_BYTES:,} bytes: {', '.join(large)}", file=sys.stderr)
    return bool(large)


def draw_shell() -> str:
    """Run the commands in a terminal of their own, and return the picture of it."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory() as folder:
        for command in COMMANDS:
            console.print(Text.assemble(("$ ", "bold green"), command.strip()), soft_wrap=True)
            console.print(Text.from_ansi(run_in_terminal(command, Path(folder))), soft_wrap=True)
    svg = console.export_svg(title="lakemq", theme=DIMMED_MONOKAI)
    # The font is the reader's own: a picture in a README loads nothing.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def run_in_terminal(command: str, folder: Path) -> str:
    """Return what a command of the shell prints on a terminal."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    settings = {"PATH": path, "LAKEMQ_PATH": "data/web", "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        ["bash", "-c", command], cwd=folder, env={**os.environ, **settings}, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        printed = b"".join(iter(lambda: _read(ours), b""))
    os.close(ours)
    if process.returncode:
        raise SystemExit(f"{command}: exit code {process.returncode}\n{printed.decode()}")
    return printed.decode().replace("\r\n", "\n").rstrip("\n")


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # Linux says so when the last process has closed the terminal.
        return b""


def photograph(report: Path, picture: Path) -> None:
    """Have Chromium take a picture of the top of the report."""
    with tempfile.TemporaryDirectory() as profile:
        command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        command += [f"--user-data-dir={profile}", f"--window-size={SIZE[0]},{SIZE[1]}", "--virtual-time-budget=20000"]
        command += [f"--force-device-scale-factor={SCALE}"]
        command += [f"--screenshot={picture}", report.as_uri()]
        subprocess.run(command, check=True, timeout=600, capture_output=True)


if __name__ == "__main__":
    sys.exit(main())
