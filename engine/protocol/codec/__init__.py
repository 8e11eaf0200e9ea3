"""Values as bytes and rows, and back.

- `letter`: a request, as JSON, checked in the call that makes it; a letter: a head with such requests, and their rows,
  as an Arrow stream of message bodies; the answer to a letter; the results that the state keeps, as JSON
- `few_rows`: a few rows of a letter, as columns in msgpack
- `steps`: a step, as one object and as rows of the journal; JSON except for the segments
- `beat`: the beat of a process with members of groups
"""
