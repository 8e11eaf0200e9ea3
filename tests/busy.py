"""Run a command three times beside four endless loops, as on a slow machine: `python tests/busy.py make test`.

Ends with the exit code of the first run that fails.
"""

import subprocess
import sys

LOOPS, RUNS = 4, 3


def main(command: list[str]) -> int:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(LOOPS)]
    try:
        for run in range(1, RUNS + 1):
            print(f"run {run} of {RUNS}, beside {LOOPS} endless loops", flush=True)
            if code := subprocess.run(command, check=False).returncode:
                return code
        return 0
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
