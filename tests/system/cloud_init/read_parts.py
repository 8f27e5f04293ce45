"""Program for the machine: parse each file of /samples with the code of cloud-init and print the parts.

The output is JSON: name of the sample -> boot hooks in the order in which they ran, scripts as written for later, and
the error that ended the reading.
"""

import json
import os
import shutil
from pathlib import Path

from cloudinit import handlers, helpers
from cloudinit.handlers.boot_hook import BootHookPartHandler
from cloudinit.handlers.shell_script import ShellScriptPartHandler
from cloudinit.settings import PER_INSTANCE
from cloudinit.user_data import UserDataProcessor

HOME = Path("/var/lib/read")


class Datasource:
    """The settings and paths that the handlers use."""

    def get_instance_id(self):
        return "i-0abc"


class RecordingBootHook(BootHookPartHandler):
    """The real handler, which also records what it ran."""

    def __init__(self, paths, datasource, ran):
        super().__init__(paths, datasource)
        self.ran = ran

    def _write_part(self, payload, filename):
        path = super()._write_part(payload, filename)
        self.ran.append([Path(path).name, Path(path).read_bytes().hex()])
        return path


def read(data):
    shutil.rmtree(HOME, ignore_errors=True)
    paths = helpers.Paths({"cloud_dir": str(HOME), "run_dir": str(HOME / "run")}, Datasource())
    (HOME / "instances" / "i-0abc").mkdir(parents=True)
    (HOME / "instance").symlink_to(HOME / "instances" / "i-0abc")
    hooks = []
    error = ""
    try:
        message = UserDataProcessor(paths).process(data)
        known = helpers.ContentHandlers()
        for handler in (RecordingBootHook(paths, Datasource(), hooks), ShellScriptPartHandler(paths)):
            known.register(handler)
        state = {
            "handlers": known,
            "handlerdir": str(HOME / "handlers"),
            "data": None,
            "frequency": PER_INSTANCE,
            "handlercount": 0,
            "excluded": [],
        }
        handlers.walk(message, handlers.walker_callback, data=state)
    except Exception as err:  # noqa: BLE001 - cloud-init logs any error and continues without user data
        error = f"{type(err).__name__}: {err}"
    written = sorted(Path(paths.get_ipath_cur("scripts")).glob("*"))
    return {
        "hooks": hooks,
        "scripts": [[path.name, path.read_bytes().hex()] for path in written if os.access(path, os.X_OK)],
        "error": error,
    }


print(json.dumps({path.name: read(path.read_bytes()) for path in sorted(Path("/samples").iterdir())}))
