"""Replace what identifies an account in recordings: account numbers, IDs, addresses, names, keys and tokens.

The same value always becomes the same placeholder, which has the form of the value: an instance ID stays an instance
ID, an address an address. So scrubbed recordings can be parsed, and the references between their calls stay intact.
Scrubbing a scrubbed text changes nothing.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from live_tier.placeholders import PATTERN, Placeholders

_TOKEN_MEMBERS = re.compile(r"(?i)(next|pagination|continuation|client)token|marker|nextmarker")
"""Members whose values are opaque, whatever they look like, without the separators in their names."""
_NAME_MEMBERS = re.compile(
    r"(?i)username|rolename|keyname|instanceprofilename|owner|team|ownerid|owneralias|sessionname|bucket"
)
"""Members whose values are names that a person chose, without the separators in their names."""
_OWNER_TAGS = frozenset({"cloudgpu:owner", "cloudgpu:team"})
_KEPT_WORDS = frozenset(
    {"root", "default", "ubuntu", "admin", "user", "role", "policy", "amazon", "aws", "self", "true", "false", "none"}
    | {"aws-service-role", "service-role", "spot.amazonaws.com", "elasticfilesystem.amazonaws.com", "fsx.amazonaws.com"}
    | {"doctor"}  # the sample resource in the policy simulation of `cloudgpu doctor`
)
"""Words that are common in recordings and do not identify an account or a person."""
_PUBLIC_SERVICES = frozenset({"servicequotas"})
"""Services whose ARNs contain an account and codes that are the same in every account."""
_OUR_NAMES = ("cloudgpu", "AWSServiceRole", "live-smoke-", "live-pair-")
_SHORTEST_NAME = 4
"""Shorter names are replaced only where they are known to be names, because in other text they are mostly words."""
_NAME_PLACEHOLDER = re.compile(r"name-\d+")


class Scrubber:
    """Placeholders by value, for all texts of one recording.

    Call `learn` with every value before the first `scrub`, so that a name is also found in values before the one that
    shows that it is a name, and so that no placeholder is used that already appears in a value.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        """Take the names that are known in advance: the user's, the machine's, the profile's."""
        self._placeholders = Placeholders()
        self._names: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        for name in names:
            self._learn_name(name)

    def learn(self, value: Any, member: str = "") -> None:  # noqa: ANN401 - JSON values
        """Note the names and the placeholders in a JSON value. `member` is the name of the member that holds it."""
        if isinstance(value, Mapping):
            for name, item in value.items():
                self.learn(item, _member(value, name))
        elif isinstance(value, list | tuple):
            for item in value:
                self.learn(item, member)
        elif isinstance(value, str):
            self._learn_text(value, member)

    def _learn_text(self, text: str, member: str) -> None:
        if _is_name(member):
            self._learn_name(text)
        for match in PATTERN.finditer(text):
            for word in _arn_words(match.group()) if match.lastgroup == "arn" else ():
                self._learn_name(word)
        self._placeholders.reserve(text)

    def _learn_name(self, name: str) -> None:
        kept = not name or name.lower() in _KEPT_WORDS or name.startswith(_OUR_NAMES)
        if not kept and not _NAME_PLACEHOLDER.fullmatch(name) and not PATTERN.fullmatch(name):
            self._names.add(name)
            self._pattern = None

    def scrub(self, value: Any, member: str = "") -> Any:  # noqa: ANN401 - JSON values
        """Return a JSON value with placeholders. Keys of objects are kept."""
        if isinstance(value, Mapping):
            return {name: self.scrub(item, _member(value, name)) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.scrub(item, member) for item in value]
        return self._member_text(value, member) if isinstance(value, str) and value else value

    def _member_text(self, text: str, member: str) -> str:
        if _TOKEN_MEMBERS.fullmatch(_letters(member)):
            return self._placeholders.of("token", text)
        if _is_name(member) and text in self._names:
            return self._placeholders.of("name", text)
        return self.text(text)

    def text(self, text: str) -> str:
        """Return a text with placeholders."""
        parts, end = [], 0
        for match in PATTERN.finditer(text):
            kind, found = match.lastgroup or "", match.group()
            parts.append(self._without_names(text[end : match.start()]))
            parts.append(self._arn(found) if kind == "arn" else self._placeholders.of(kind, found))
            end = match.end()
        return "".join([*parts, self._without_names(text[end:])])

    def _without_names(self, text: str) -> str:
        if self._pattern is None:
            longest = sorted((name for name in self._names if len(name) >= _SHORTEST_NAME), key=len, reverse=True)
            names = "|".join(re.escape(name) for name in longest) or r"(?!)"
            self._pattern = re.compile(rf"(?<![\w-])(?:{names})(?![\w-])")
        return self._pattern.sub(lambda match: self._placeholders.of("name", match.group()), text)

    def _arn(self, arn: str) -> str:
        *head, account, resource = arn.split(":", 5)
        account = self._placeholders.of("account", account) if account.isdigit() else account
        words = [part if part in ("/", ":") else self._arn_word(part) for part in re.split(r"([/:])", resource)]
        return ":".join([*head, account, "".join(words)])

    def _arn_word(self, word: str) -> str:
        return self._placeholders.of("name", word) if word in self._names else self.text(word)


def _member(value: Mapping[str, Any], name: str) -> str:
    """Return the name of a member, or `tag:KEY` for the value of a tag, an object with the members Key and Value."""
    key = value.get("Key", value.get("key"))
    return f"tag:{key}" if isinstance(key, str) and name in ("Value", "value") else name


def _is_name(member: str) -> bool:
    """Return True if a member or a tag holds a name that a person chose."""
    if member.startswith("tag:"):
        key = member.removeprefix("tag:")
        return key in _OWNER_TAGS or not key.startswith(("cloudgpu:", "aws:"))
    return bool(_NAME_MEMBERS.fullmatch(_letters(member)))


def _letters(member: str) -> str:
    return re.sub(r"[^a-zA-Z]", "", member)


def _arn_words(arn: str) -> list[str]:
    """Return the names in an ARN that the account's users chose: the parts of the resource after its type.

    ARNs without an account name AWS's own resources, but for buckets, whose ARNs have neither an account nor a type.
    """
    _, _, service, _, account, resource = arn.split(":", 5)
    parts = [part for part in re.split(r"[/:]", resource) if part and "*" not in part]
    if service == "s3":
        return parts[:1]
    return parts[1:] if account.isdigit() and service not in _PUBLIC_SERVICES else []
