"""Expected failures of a verb."""


class AgentError(Exception):
    """An expected failure. `hint` is the next step for the user, and `code` identifies the failure for programs."""

    def __init__(self, message: str, *, hint: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code


class DamagedError(AgentError, ValueError):
    """One of the agent's files is corrupt."""
