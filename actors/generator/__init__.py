"""The generator: one inference engine behind the Engine protocol, with in-flight weight updates."""
