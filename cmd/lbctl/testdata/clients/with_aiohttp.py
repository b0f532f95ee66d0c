"""GET, HEAD, POST and a second GET in one session of aiohttp."""
import asyncio
import sys

import aiohttp

url, body = sys.argv[1], open(sys.argv[2], "rb").read()


async def main():
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False, limit=1)) as s:
        for method, data in (("GET", None), ("HEAD", None), ("POST", body), ("GET", None)):
            async with s.request(method, url, data=data) as answer:
                text = await answer.read()
                assert answer.status == 200, (method, answer.status)
                assert (len(text) == 0) == (method == "HEAD"), (method, len(text))


asyncio.run(main())
