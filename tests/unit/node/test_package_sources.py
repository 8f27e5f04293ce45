"""Translation of pip settings to uv environment variables."""

import pytest

from cloudgpu.node.agent.environments.installer import translate_pip_config

ALWAYS = {"UV_INDEX_STRATEGY": "unsafe-best-match"}


@pytest.mark.parametrize(
    ("listed", "variables"),
    [
        ("", {}),
        (
            "global.index-url='https://u:p@index.example/simple'",
            {"UV_DEFAULT_INDEX": "https://u:p@index.example/simple"},
        ),
        ("global.find-links='\\n/a\\n/b'\n", {"UV_FIND_LINKS": "/a,/b"}),
        (
            "install.extra-index-url='https://a.example https://b.example'",
            {"UV_INDEX": "https://a.example https://b.example"},
        ),
        ("global.cert='/x.pem'\n:env:.cert='/y.pem'", {"SSL_CERT_FILE": "/y.pem"}),
        (":env:.proxy='http://p:1'", {"HTTPS_PROXY": "http://p:1", "HTTP_PROXY": "http://p:1"}),
        (":env:.no-index='1'", {"UV_NO_INDEX": "1"}),
        (":env:.no-index='0'", {}),
        ("download.index-url='https://other.example'", {}),
        (":env:.default-timeout='180'\n:env:.disable-pip-version-check='1'\nglobal.pre='no'", {}),
    ],
)
def test_pip_settings_are_translated_to_uv_variables(listed: str, variables: dict[str, str]) -> None:
    assert translate_pip_config(listed) == ALWAYS | variables


@pytest.mark.parametrize(
    "listed",
    [
        "global.keyring-provider='subprocess'",
        "global.pre='true'",
        "install.no-binary=':all:'",
        "banner",
        "global.cert=x y",
    ],
)
def test_untranslatable_pip_settings_fall_back_to_pip(listed: str) -> None:
    assert translate_pip_config(listed) is None
