"""The answer for people: a plan in the field's words, and the page that shows it."""
