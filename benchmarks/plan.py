"""Measure `cloudgpu plan --offline`.

Aim: `plan recipes/quickstart --offline` <= 0.6 s.
"""

import tempfile

from measure import CLOUDGPU, run, show_command


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [str(CLOUDGPU), "plan", "recipes/quickstart", "--on", "rehearsal", "--offline"]
        cost = run(command, env={"CLOUDGPU_HOME": folder})
        show_command("cloudgpu plan recipes/quickstart --offline, wall", cost, 0.6)
        cost = run([*command, "--json"], env={"CLOUDGPU_HOME": folder})
        show_command("the same with --json", cost, 0.6)


if __name__ == "__main__":
    main()
