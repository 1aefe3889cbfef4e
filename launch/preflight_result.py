"""Where the preflight process leaves what it found, for the launcher: {"problems": […], "data_hash": …}.

While it builds an actor, whose constructor is anybody's code and may end the process, what that is:
{BUILDING: key, "given": target}.
"""

RESULT = "preflight.json"
BUILDING = "building"
