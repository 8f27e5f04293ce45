"""Botocore's parsers can read error responses with any message."""

import botocore.session
import pytest
from botocore.parsers import create_parser
from hypothesis import example, given
from hypothesis import strategies as st

from cloudgpu.rehearsal.server.error_responses import PROTOCOLS, correct_error, error_response

CLIENTS = {
    "ec2": "ec2",
    "iam": "iam",
    "sts": "sts",
    "s3": "s3",
    "route53": "route53",
    "elasticfilesystem": "efs",
    "scheduler": "scheduler",
    "ssm": "ssm",
    "fsx": "fsx",
    "dynamodb": "dynamodb",
    "kms": "kms",
    "ecr": "ecr",
    "servicequotas": "service-quotas",
    "pricing": "pricing",
}
"""Signing name of the service -> client name."""
SESSION = botocore.session.get_session()
MODELS = {service: SESSION.get_service_model(client) for service, client in CLIENTS.items()}
HOSTILE = [
    "two\nlines", 'quotes " and \\ and \\u0000', "</Message><Code>Other</Code>", "&amp; & &#0;", "a\x00b\x1b[2J\x7f",
    "]]>", "\ud800", "\ufffe", "é 漢 😀", "{}", "%s", "\r\n\r\nHTTP/1.1 200 OK", "x" * 100_000, "",
]  # fmt: skip


def parsed(service, answer):
    parser = create_parser(MODELS[service].metadata["protocol"])
    found = parser.parse({"status_code": answer.status, "headers": answer.headers, "body": answer.body}, None)
    return found["Error"]


@pytest.mark.parametrize("service", CLIENTS)
def test_protocol_table_matches_botocore(service):
    models = MODELS[service].metadata.get("protocols") or [MODELS[service].metadata["protocol"]]
    assert PROTOCOLS.get(service, "query") in models


@pytest.mark.parametrize("service", CLIENTS)
@pytest.mark.parametrize("message", HOSTILE, ids=lambda text: ascii(text)[:20])
def test_client_parses_error_code_and_message(service, message):
    found = parsed(service, error_response(service, "SomeCode", message, 400))
    assert found["Code"] == "SomeCode"
    if message.isprintable():
        assert (found["Message"] or "") == message
    else:
        assert len(found["Message"]) >= len(message) - message.count("\r\n")


@given(service=st.sampled_from(sorted(CLIENTS)), code=st.text(), message=st.text())
@example("ssm", "Bad\r\nX-Evil: 1", "")
def test_any_error_code_and_message_is_parseable(service, code, message):
    answer = error_response(service, code, message, 500)
    parsed(service, answer)
    assert all("\n" not in value and value.isascii() for value in answer.headers.values())


@pytest.mark.parametrize("message", HOSTILE, ids=lambda text: ascii(text)[:20])
@pytest.mark.parametrize("service", ["ec2", "iam", "s3"])
def test_unescaped_moto_error_is_rewritten_as_valid_xml(service, message):
    body = f"<Response><Errors><Error><Code>Some.Code</Code><Message>{message}</Message></Error></Errors></Response>"
    answer = correct_error(service, 400, {}, body.encode(errors="replace"))
    parsed(service, answer)
    assert b"Code>" in answer.body


def test_valid_error_response_is_unchanged():
    answer = correct_error("ec2", 400, {"a": "b"}, b"<Response><Errors/></Response>")
    assert (answer.headers, answer.body) == ({"a": "b"}, b"<Response><Errors/></Response>")
