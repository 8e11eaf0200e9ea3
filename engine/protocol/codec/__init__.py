"""Values as bytes and rows, and back.

- `request`: one request, as JSON, checked in the call that makes it
- `letter`: a letter: a head with such requests, and their rows; also the answer to a letter
- `letter_rows`: the rows of a letter, as an Arrow stream of message bodies
- `few_rows`: a few rows of a letter, as columns in msgpack
- `results`: the results of a letter that the state keeps, as JSON
- `journal`: a step, as rows of the journal; JSON except for the segments
- `beat`: the beat of a process with members of groups
"""
