"""How long `cloudgpu plan` takes without asking anybody.

Aim: `plan recipes/quickstart --offline` <= 0.6 s.
"""

import tempfile

from measure import CLOUDGPU, run, show


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        command = [CLOUDGPU, "plan", "recipes/quickstart", "--on", "rehearsal", "--offline"]
        found = run(command, env={"CLOUDGPU_HOME": folder})
        show("cloudgpu plan recipes/quickstart --offline, wall", found.wall_s, 0.6, "s")
        found = run([*command, "--json"], env={"CLOUDGPU_HOME": folder})
        show("the same with --json", found.wall_s, 0.6, "s")


if __name__ == "__main__":
    main()
