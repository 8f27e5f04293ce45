"""Settings that are not part of a recipe: names, sources, types and documentation."""

from cloudgpu.settings.fields import Setting, Settings, env_name, mask_url, settings_docs
from cloudgpu.settings.sources import load, user_file

__all__ = ["Setting", "Settings", "env_name", "load", "mask_url", "settings_docs", "user_file"]
