"""Credentials, endpoint and clients. The one place that builds a boto3 session."""

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Endpoint:
    """Which cloud to talk to.

    Attributes:
        url: Endpoint of the rehearsal cloud; empty means the real AWS, whatever `AWS_ENDPOINT_URL` says.
        access_key_id: Key for the rehearsal endpoint; empty means the user's own AWS credential chain.
        secret_access_key: Its secret; never shown.
    """

    url: str = ""
    access_key_id: str = ""
    secret_access_key: str = ""

    def __repr__(self) -> str:
        return f"Endpoint(url={self.url!r})"


class Clients(Protocol):
    """boto3 clients of one region, built once each and safe to use from several threads."""

    region: str

    def client(self, service: str) -> Any:  # noqa: ANN401
        """A client with standard retries."""

    def launch_client(self) -> Any:  # noqa: ANN401
        """An EC2 client that sends every call once: capacity errors must come back at once."""
