// GET, HEAD, POST and further GETs with Node's fetch, which by itself closes a connection after HEAD.
import { readFileSync } from 'node:fs'

const [url, body] = [process.argv[2], readFileSync(process.argv[3])]
for (const [method, data] of [['GET'], ['HEAD'], ['POST', body], ['GET'], ['GET'], ['GET'], ['GET']]) {
  const answer = await fetch(url, { method, body: data })
  const got = (await answer.arrayBuffer()).byteLength
  if (answer.status !== 200 || (got === 0) !== (method === 'HEAD')) throw new Error(`${method}: ${answer.status}, ${got} bytes`)
}
