"""Entry point of `python -m cloudgpu.rehearsal.server`."""

from cloudgpu.rehearsal.server.main import main

if __name__ == "__main__":
    raise SystemExit(main())
