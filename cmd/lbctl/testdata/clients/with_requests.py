"""GET, HEAD, POST (with a length, and in chunks) and a second GET in one session of requests."""
import sys

import requests
import urllib3

urllib3.disable_warnings()
url, body = sys.argv[1], open(sys.argv[2], "rb").read()
s = requests.Session()
s.verify = False
s.trust_env = False  # a CA bundle of the environment would be used in spite of verify
pieces = lambda: (body[i:i + 10000] for i in range(0, len(body), 10000))
for method, data in (("GET", None), ("HEAD", None), ("POST", body), ("POST", pieces()), ("GET", None)):
    answer = s.request(method, url, data=data, timeout=30)
    assert answer.status_code == 200, (method, answer.status_code)
    assert (len(answer.content) == 0) == (method == "HEAD"), (method, len(answer.content))
