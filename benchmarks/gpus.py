"""Measure `cloudgpu gpus` on the whole catalog.

Aims: <= 0.3 s, and <= 3x the CPU time of `cloudgpu --version`, so that the command adds little to startup and option
parsing.
"""

import tempfile

from measure import CLOUDGPU, run, show, show_command


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = {"CLOUDGPU_HOME": folder}
        version = run([CLOUDGPU, "--version"], env=home)
        for arguments in (["gpus"], ["gpus", "show", "V100"], ["images"]):
            cost = run([CLOUDGPU, *arguments], env=home)
            show_command(f"cloudgpu {' '.join(arguments)}, wall", cost, 0.3)
            show(f"cloudgpu {' '.join(arguments)} relative to --version, CPU", cost.cpu_s / version.cpu_s, 3.0, "x")


if __name__ == "__main__":
    main()
