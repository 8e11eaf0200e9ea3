"""Pages of the documentation: their code blocks, and ways to run these as a reader does."""

import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from typer.testing import CliRunner

from lakemq.jobs.cli import app

CHECKOUT = Path(__file__).parents[2]
DOCS = CHECKOUT / "docs"
_COMMAND = re.compile(r"(?:(?P<source>.+) \| )?lakemq (?P<arguments>.*?)(?: > (?P<target>[\w.]+))?")
"""A line with one command of LakeMQ, perhaps with a pipe before it, or a file for its output."""


def read_page(name: str) -> str:
    """Return the text of a page of `docs`, or of a page at the root such as README.md."""
    path = DOCS / name
    return (path if path.exists() else CHECKOUT / name).read_text(encoding="utf-8")


def read_blocks(page: str, language: str) -> list[str]:
    """Return the code blocks of a language on a page, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", read_page(page), re.DOTALL | re.MULTILINE)


def join_python(page: str) -> str:
    """Return the Python blocks of a page as one program, which closes its connection at the end."""
    return "\n".join([*read_blocks(page, "python"), "mq.close()"])


@contextmanager
def working_folder(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def run_program(program: str, folder: Path) -> str:
    """Run a program in this process, with the folder as its working folder, and return its output.

    To start a Python process takes longer than most programs.
    """
    output = io.StringIO()
    with working_folder(folder), redirect_stdout(output):
        exec(compile(program, "<page>", "exec"), {"__name__": "__main__"})
    return output.getvalue()


def run_as_process(program: str, folder: Path) -> str:
    """Run a program in a Python process of its own, and return its output. It must write no error."""
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def run_commands(script: str, folder: Path, last_code: int = 0, env: Mapping[str, str] | None = None) -> list[str]:
    """Run the lines of a shell script, and return the output of each; commands of LakeMQ run in this process.

    last_code: the exit code of the last line. All other lines must end with 0.
    """
    lines = [line for line in script.splitlines() if line]
    env = {"COLUMNS": "400", **(env or {})}
    with working_folder(folder):
        results = [_run_line(line, env) for line in lines]
    codes = [code for code, _ in results]
    assert codes == [0] * (len(lines) - 1) + [last_code], list(zip(lines, results, strict=True))
    return [output for _, output in results]


def _run_line(line: str, env: Mapping[str, str]) -> tuple[int, str]:
    """Return the exit code and the output of a line."""
    command = _COMMAND.fullmatch(line)
    if command is None:
        return _run_bash(line, env)
    source, target = command["source"], command["target"]
    stdin = _run_bash(source, env)[1] if source else ""
    done = CliRunner().invoke(app, shlex.split(command["arguments"], comments=True), input=stdin, env=env)
    if target:
        Path(target).write_text(done.stdout, encoding="utf-8")
    return done.exit_code, done.stdout if done.exit_code in (0, 1) else done.output


def _run_bash(line: str, env: Mapping[str, str]) -> tuple[int, str]:
    done = subprocess.run(["bash", "-c", line], env={**os.environ, **env}, capture_output=True, text=True)
    return done.returncode, done.stdout or done.stderr
