"""The errors that a verb ends with on purpose."""


class AgentError(Exception):
    """What happened and where; `hint` says what to do next, `code` names it for programs."""

    def __init__(self, message: str, *, hint: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code


class DamagedError(AgentError, ValueError):
    """A file of the agent's own holds something else than it wrote."""
