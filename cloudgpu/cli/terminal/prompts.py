"""Prompt the user on the terminal."""

import sys
from collections.abc import Callable, Sequence

import typer

from cloudgpu.cli.terminal.interruption import interruptions
from cloudgpu.cli.terminal.output import ask, ask_for_hidden_text, ask_for_text
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.errors import QuestionError


class Prompts:
    """Prompts on the terminal. They never wait for input if there is no terminal.

    Without a terminal, prompts raise an error, except that the prompt after Ctrl-C is skipped and the cluster is kept.
    """

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def confirm(
        self, question: str, *, yes: bool, reasons: Sequence[str] = (), hint: str = "to skip the prompt, add --yes"
    ) -> None:
        """Ask the user to confirm an action, unless `yes` is set.

        Args:
            question: The question to show.
            yes: Whether the user has already confirmed.
            reasons: Lines to show before the question.
            hint: Hint for the error that is raised if there is no terminal.
        """
        if yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            message = f"confirmation is required ({question}), but there is no terminal"
            raise QuestionError(message, hint=hint, reasons=reasons)
        for reason in reasons:
            self._screen.remark(reason)
        try:
            confirmed = ask(question)
        except typer.Abort:
            self._screen.lines(["", "nothing was done"])
            raise KeyboardInterrupt from None
        if not confirmed:
            self._screen.line("nothing was done")
            raise typer.Exit(1)

    def ask(self, question: str, *, hint: str) -> bool:
        """Ask a question that `--yes` must not skip. Return True if the user answers yes.

        Args:
            question: The question to show.
            hint: Hint for the error that is raised if there is no terminal.
        """
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise QuestionError(f"confirmation is required ({question}), but there is no terminal", hint=hint)
        return ask(question)

    @property
    def are_possible(self) -> bool:
        """Whether there is a terminal, so that the user can be asked."""
        return sys.stdin.isatty() and sys.stderr.isatty()

    def ask_for_secret(self, name: str) -> str:
        """Ask for the value of a secret without showing what the user types."""
        try:
            return ask_for_hidden_text(f"Value of the secret {name} (not shown)")
        except typer.Abort:
            self._screen.lines(["", "nothing was done"])
            raise KeyboardInterrupt from None

    def confirm_by_name(self, question: str, name: str, *, yes: bool, by_name: bool) -> None:
        """Ask the user to confirm a deletion, unless `yes` is set. If `by_name` is set, the user must type the name."""
        if yes or not by_name:
            self.confirm(question, yes=yes)
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            message = f"confirmation requires typing {name}, but there is no terminal ({question})"
            raise QuestionError(message, hint="to skip the prompt, add --yes")
        try:
            typed = ask_for_text(f"{question} To confirm, type {name}")
        except typer.Abort:
            self._screen.lines(["", "nothing was done"])
            raise KeyboardInterrupt from None
        if typed.strip() != name:
            self._screen.line("the name does not match; nothing was done")
            raise typer.Exit(1)

    def delete_on_interrupt(
        self, choice: str, state: str = "is still running", *, default: bool = False
    ) -> Callable[[str], bool]:
        """Return a callback that decides whether to delete a cluster after Ctrl-C.

        Args:
            choice: Value of `--on-interrupt`. For `ask`, the cluster is kept if the user cannot be asked.
            state: State of the cluster, as shown in the question.
            default: Answer if the user only presses Enter.
        """

        def decide(what: str) -> bool:
            if choice != "ask":
                return choice == "end"
            if not (sys.stdin.isatty() and interruptions.may_ask):
                return False
            try:
                self._screen.remark("")  # end the line on which the terminal printed ^C
                return ask(f"{what} {state}. Delete the cluster now?", default=default)
            except typer.Abort:
                return False  # a second Ctrl-C does not confirm the deletion

        return decide
