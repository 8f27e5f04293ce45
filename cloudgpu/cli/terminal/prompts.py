"""Prompts, and the error raised when there is no terminal to answer them."""

import sys
from collections.abc import Callable

import typer

from cloudgpu.cli.terminal.output import ask, ask_for_text
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.cli.terminal.signals import interruptions
from cloudgpu.errors import QuestionError


class Questions:
    """Ask on the terminal; without a terminal, raise an error instead of waiting."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask before spending.

        Raises:
            QuestionError: There is no terminal to ask on.
            typer.Exit: The answer was no.
        """
        if yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            message = f"this needs confirmation ({question}), but there is no terminal"
            raise QuestionError(message, hint="to skip the prompt, add --yes")
        try:
            agreed = ask(question)
        except typer.Abort:
            self._screen.lines(["", "nothing was done"])
            raise KeyboardInterrupt from None
        if not agreed:
            self._screen.line("nothing was done")
            raise typer.Exit(1)

    def agreed(self, question: str, *, hint: str) -> bool:
        """Ask about something that only a person may confirm; `hint` says what to do without a terminal.

        Raises:
            QuestionError: There is no terminal to ask on.
        """
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise QuestionError(f"this needs confirmation ({question}), but there is no terminal", hint=hint)
        return ask(question)

    def confirm_by_name(self, question: str, name: str, *, yes: bool, by_name: bool) -> None:
        """Ask before deleting; with `by_name` only the typed name agrees.

        Raises:
            QuestionError: There is no terminal to ask on.
            typer.Exit: The answer was no, or another name.
        """
        if yes or not by_name:
            self.confirm(question, yes=yes)
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            message = f"this needs the name {name} typed ({question}), but there is no terminal"
            raise QuestionError(message, hint="to skip the prompt, add --yes")
        try:
            typed = ask_for_text(f"{question} Type its name to agree")
        except typer.Abort:
            self._screen.lines(["", "nothing was done"])
            raise KeyboardInterrupt from None
        if typed.strip() != name:
            self._screen.line("the name does not match; nothing was done")
            raise typer.Exit(1)

    def end_on_interrupt(self, choice: str, state: str = "goes on") -> Callable[[str], bool]:
        """Return the callback that decides after Ctrl-C whether to delete what is running.

        Without a terminal, it is kept.
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
                return False  # a second Ctrl-C must not end what was not asked to be ended

        return decide
