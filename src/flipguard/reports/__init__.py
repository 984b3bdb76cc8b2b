"""What a comparison looks like: on a terminal, in a pull request, to a CI server."""
