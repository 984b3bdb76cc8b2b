"""The page that people open: one self-contained HTML file."""
