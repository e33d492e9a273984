"""The recurrent state: its fields, their checks, and masks."""
