"""The grader: verifiable scores for finished sessions, CPU-heavy ones in killable child processes."""
