"""The planner as a page in the browser: `anechoic app`."""
