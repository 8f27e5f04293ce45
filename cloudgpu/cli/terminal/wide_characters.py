"""Display width of characters outside ASCII. Imported only when a table or paragraph contains one, because of rich."""

from rich.cells import cell_len


def text_columns(text: str) -> int:
    """Return the number of terminal columns that printable text occupies."""
    return cell_len(text)
