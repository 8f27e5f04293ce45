"""The learning rate of Transformers: up in a line, then down by the inverse square root of the updates."""


def inverse_sqrt(update: int, peak: float, warm_up: int) -> float:
    """At this update, counted from 1; `peak` is reached at the last one of the warm-up."""
    if update < warm_up:
        return peak * update / warm_up
    return peak * (warm_up / update) ** 0.5
