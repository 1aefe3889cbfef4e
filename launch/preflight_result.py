"""Where the preflight process leaves what it found, for the launcher: {"problems": […], "data_hash": …}."""

RESULT = "preflight.json"
