"""How large what nodes answer may be; without PyTorch, because the process that passes messages on needs none."""

LARGEST = 2**28  # bytes of an answer
# Bytes of a message that are sent at once: the server holds several copies of what it receives
PART = 2**22
# That Flower makes of the largest answer: itself, its record, and its parts
OBJECTS = 2 + LARGEST // PART
# Bytes of a request over HTTP, which carries a part and what Flower sends beside it
BODY = 2 * PART
