"""`cloudgpu config`: every setting, its value and where it came from."""

from cloudgpu.cli.options import Json


def config(json: Json = False) -> None:
    """Show the settings in force, each with its origin. Passwords are masked."""
    from cloudgpu.cli.wiring import wire

    wiring = wire(json=json)
    origins = wiring.settings.origins
    if json:
        wiring.screen.document([{"name": one.name, "value": one.shown, "origin": one.origin} for one in origins])
        return
    width = max(len(one.name) for one in origins)
    wiring.screen.lines([f"{one.name:<{width}}  {one.shown or '-'}  ({one.origin})" for one in origins])
