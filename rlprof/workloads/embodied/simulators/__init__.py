"""Robot simulators; `make` finds one by name."""
