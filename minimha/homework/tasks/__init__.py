"""The tasks of the course, in order. Each chapter has two files: the tasks with their checks, and
common mistakes as edits of the solutions, which releases lack. `catalogue` finds a task."""
