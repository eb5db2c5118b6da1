"""Guesses tokens ahead and decides how many are worth verifying. The engine never imports this room."""
