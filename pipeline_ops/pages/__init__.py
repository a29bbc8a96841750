"""The style sheet, the head and the drawings of all HTML pages."""
