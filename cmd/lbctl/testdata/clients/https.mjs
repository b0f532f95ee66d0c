// GET, HEAD, POST and a second GET with Node's https and a keeping agent.
import https from 'node:https'
import { readFileSync } from 'node:fs'

const [url, body] = [process.argv[2], readFileSync(process.argv[3])]
const agent = new https.Agent({ keepAlive: true, maxSockets: 1, rejectUnauthorized: false })

const ask = (method, data) => new Promise((done, failed) => {
  const request = https.request(url, { method, agent }, answer => {
    let got = 0
    answer.on('data', piece => { got += piece.length })
    answer.on('end', () => answer.statusCode === 200 && (got === 0) === (method === 'HEAD') ? done() : failed(new Error(`${method}: ${answer.statusCode}, ${got} bytes`)))
    answer.on('error', failed)
  })
  request.on('error', failed)
  request.end(data)
})

for (const [method, data] of [['GET'], ['HEAD'], ['POST', body], ['GET']]) await ask(method, data)
agent.destroy()
