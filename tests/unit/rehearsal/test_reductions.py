"""Values that plain pickle cannot serialize round-trip unchanged."""

import io
import pickle
from collections import defaultdict

from cloudgpu.rehearsal.aws_api.store import take_apart


class Pickler(pickle.Pickler):
    def reducer_override(self, obj):
        return take_apart(obj) or NotImplemented


class Owned(defaultdict):
    def __init__(self, owner):
        super().__init__(list)
        self.owner = owner


class Holder:
    def __init__(self, start):
        self.start = start
        self.count = lambda step=2: self.start + step
        self.itself = lambda: self


def copied(value):
    buffer = io.BytesIO()
    Pickler(buffer).dump(value)
    return pickle.loads(buffer.getvalue())


def test_pickled_local_function_keeps_defaults_and_closure():
    number = 40
    assert copied(lambda step=2: number + step)() == 42


def test_pickled_function_can_close_over_its_owner():
    again = copied(Holder(5))
    assert again.count() == 7
    assert again.itself() is again


def test_pickled_dict_subclass_keeps_attributes_and_items():
    owned = Owned("me")
    owned["a"].append(1)
    again = copied(owned)
    assert (type(again), again.owner, dict(again), again["new"]) == (Owned, "me", {"a": [1]}, [])
