"""How values become bytes and rows, and values again.

request       one request: JSON, found right in the call that makes it
letter        a letter, which is a head of such requests and their rows; and the answer to it
letter_rows   the rows in a letter: an Arrow stream of message bodies
results       the results that are kept of a letter: JSON
journal       a step: rows of the journal, JSON but for the segments
"""
