"""Prompts, and the error that is raised if there is no terminal for them."""

import sys
from collections.abc import Callable

import typer

from cloudgpu.cli.terminal.output import ask, ask_for_text
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.cli.terminal.signals import interruptions
from cloudgpu.errors import QuestionError


class Prompts:
    """Prompts on the terminal. If there is no terminal, they raise an error instead of waiting."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask the user to confirm an action, unless `yes` is set.

        Raises:
            QuestionError: There is no terminal for the prompt.
            typer.Exit: The user declined.
        """
        if yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            message = f"this needs confirmation ({question}), but there is no terminal"
            raise QuestionError(message, hint="to skip the prompt, add --yes")
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
            hint: Hint for the error raised if there is no terminal.

        Raises:
            QuestionError: There is no terminal for the prompt.
        """
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise QuestionError(f"this needs confirmation ({question}), but there is no terminal", hint=hint)
        return ask(question)

    def confirm_by_name(self, question: str, name: str, *, yes: bool, by_name: bool) -> None:
        """Ask the user to confirm a deletion; if `by_name` is set, by typing the name.

        Raises:
            QuestionError: There is no terminal for the prompt.
            typer.Exit: The user declined or typed another name.
        """
        if yes or not by_name:
            self.confirm(question, yes=yes)
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            message = f"confirmation requires typing {name}, but there is no terminal ({question})"
            raise QuestionError(message, hint="to skip the prompt, add --yes")
        try:
            typed = ask_for_text(f"{question} Type its name to confirm")
        except typer.Abort:
            self._screen.lines(["", "nothing was done"])
            raise KeyboardInterrupt from None
        if typed.strip() != name:
            self._screen.line("the name does not match; nothing was done")
            raise typer.Exit(1)

    def delete_on_interrupt(self, choice: str, state: str = "is still running") -> Callable[[str], bool]:
        """Return the callback that decides after Ctrl-C whether to delete a cluster.

        Args:
            choice: Value of `--on-interrupt`. If it is `ask` and there is no terminal, the cluster is kept.
            state: State of the cluster as shown in the question.
        """

        def decide(what: str) -> bool:
            if choice != "ask":
                return choice == "end"
            if not (sys.stdin.isatty() and interruptions.may_ask):
                return False
            try:
                self._screen.remark("")  # below the ^C
                return ask(f"{what} {state}. Delete it now?")
            except typer.Abort:
                return False  # a second Ctrl-C does not confirm the deletion

        return decide
