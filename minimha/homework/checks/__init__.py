"""The code that runs when an answer is checked: tasks and their checks, comparisons, and
messages."""
