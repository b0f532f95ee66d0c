"""GET, HEAD, POST and a second GET on one connection of http.client, then a GET by urllib."""
import http.client
import ssl
import sys
import urllib.request
from urllib.parse import urlsplit

base, body = urlsplit(sys.argv[1]), open(sys.argv[2], "rb").read()
insecure = ssl._create_unverified_context()
c = http.client.HTTPSConnection(base.netloc, context=insecure, timeout=30)
for method, data in (("GET", None), ("HEAD", None), ("POST", body), ("GET", None)):
    c.request(method, base.path, body=data)
    answer = c.getresponse()
    text = answer.read()
    assert answer.status == 200, (method, answer.status)
    assert (len(text) == 0) == (method == "HEAD"), (method, len(text))
with urllib.request.urlopen(sys.argv[1], context=insecure, timeout=30) as answer:
    assert answer.status == 200 and answer.read()
