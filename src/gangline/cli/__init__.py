"""The command line: one file per command, drawn by a few modules beside them; reaches the server by `gangline.client`.

Commands: init submit stop resume wait ps show logs watch metrics checkpoints pools server schema version. `main` is the
entry, and `early` minds Ctrl-C before it; `argv` and `specoptions` read the line of `submit`; `describe`, `summary`,
`table`, `plot`, `text` and `logtext` turn JSON into lines and are pure; `terminal` knows what can be shown, `failure`
says what went wrong, `follow` prints a run as it goes.
"""

from gangline.cli.early import arm

arm()
